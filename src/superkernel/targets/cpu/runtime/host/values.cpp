// values.cpp: addresses and sizes that need no check -> one launch, or a series of launches, in one call.
#include <algorithm>

#include "program.h"

using namespace sk::host;

extern "C" {

// 0: done. kClosed: nothing was run. Otherwise the address of the launch that was stopped, still to be ended.
int64_t sk_call_values(Program* program, const uint64_t* values, const int64_t* sizes, int32_t interrupts) {
    Running* running = sk_launch_begin(program);
    if (running == nullptr) return kClosed;
    if (sk_launch_run(running, values, sizes, interrupts) != 0) return reinterpret_cast<int64_t>(running);
    sk_launch_end(running);
    return 0;
}

// The same with time stamps, which `room` is filled with as sk_launch_record says.
int64_t sk_call_recorded(Program* program, const uint64_t* values, const int64_t* sizes, int32_t interrupts,
                         uint64_t* room) {
    Running* running = sk_launch_begin(program);
    if (running == nullptr) return kClosed;
    if (sk_launch_run(running, values, sizes, interrupts) != 0) return reinterpret_cast<int64_t>(running);
    sk_launch_record(running, room);
    sk_launch_end(running);
    return 0;
}

// One launch of a series: per value of its own, the value of the series that it is, plus an addend.
struct Leg {
    Program* program;
    int32_t count;
    const int32_t* place;    // < 0: the addend alone
    const uint64_t* addend;
};

static void take(const Leg& leg, Running& running, const uint64_t* values, const int64_t* sizes) {
    running.values.resize(leg.count);
    running.sizes.resize(leg.count);
    for (int32_t i = 0; i < leg.count; ++i) {
        const int32_t place = leg.place[i];
        running.values[i] = (place < 0 ? 0 : values[place]) + leg.addend[i];
        running.sizes[i] = place < 0 ? 0 : std::max<int64_t>(0, sizes[place] - int64_t(leg.addend[i]));
    }
}

// One launch after the other, until one is stopped; it then knows which leg it is. Answers as sk_call_values.
// Where `moments` are wanted, and launches are timed: when each was dispatched and when it completed.
int64_t sk_call_series(const Leg* legs, int32_t count, const uint64_t* values, const int64_t* sizes, int32_t interrupts,
                       uint64_t* moments) {
    const Interrupts handled(interrupts != 0);
    for (int32_t i = 0; i < count; ++i) {
        Running* running = sk_launch_begin(legs[i].program);
        if (running == nullptr) return kClosed;
        take(legs[i], *running, values, sizes);
        running->leg = i;
        if (run(running, running->values.data(), running->sizes.data(), handled) != 0) {
            return reinterpret_cast<int64_t>(running);
        }
        if (moments != nullptr) {
            moments[2 * i] = running->dispatched_ns;
            moments[2 * i + 1] = running->completed_ns;
        }
        sk_launch_end(running);
    }
    return 0;
}

int32_t sk_launch_leg(Running* running) { return running->leg; }

}  // extern "C"
