// values.cpp: addresses and sizes that have been checked -> one launch, or a launch sequence, in one call.
#include <algorithm>

#include "program.h"

using namespace sk::host;

extern "C" {

// 0: done. kClosed: nothing was run. Otherwise the address of the stopped launch, which the caller must end.
int64_t sk_call_values(Program* program, const uint64_t* values, const int64_t* sizes, int32_t interrupts) {
    Running* running = sk_launch_begin(program);
    if (running == nullptr) return kClosed;
    if (sk_launch_run(running, values, sizes, interrupts) != 0) return reinterpret_cast<int64_t>(running);
    sk_launch_end(running);
    return 0;
}

// The same with time stamps, written to `room` as sk_launch_record does.
int64_t sk_call_recorded(Program* program, const uint64_t* values, const int64_t* sizes, int32_t interrupts,
                         uint64_t* room) {
    Running* running = sk_launch_begin(program);
    if (running == nullptr) return kClosed;
    if (sk_launch_run(running, values, sizes, interrupts) != 0) return reinterpret_cast<int64_t>(running);
    sk_launch_record(running, room);
    sk_launch_end(running);
    return 0;
}

// One launch of a sequence: each of its values is a value of the sequence plus an addend.
struct SequencedLaunch {
    Program* program;
    int32_t count;
    const int32_t* source;   // index of a value of the sequence; < 0: the addend alone
    const uint64_t* addend;
};

static void fill_values(const SequencedLaunch& launch, Running& running, const uint64_t* values, const int64_t* sizes) {
    running.values.resize(launch.count);
    running.sizes.resize(launch.count);
    for (int32_t i = 0; i < launch.count; ++i) {
        const int32_t source = launch.source[i];
        const bool null = source >= 0 && values[source] == 0 && sizes[source] > 0;  // stays so, and is refused
        running.values[i] = null ? 0 : (source < 0 ? 0 : values[source]) + launch.addend[i];
        running.sizes[i] = source < 0 ? 0 : std::max<int64_t>(0, sizes[source] - int64_t(launch.addend[i]));
    }
}

// Runs the launches in order until one is stopped, which then knows its position. Returns as sk_call_values.
// With `times`, while launches are timed: when each was dispatched and when it completed. With `rooms`, where one is not
// null: the time stamps of that launch, as sk_launch_record writes them.
int64_t sk_call_sequence(const SequencedLaunch* launches, int32_t count, const uint64_t* values, const int64_t* sizes,
                         int32_t interrupts, uint64_t* times, uint64_t** rooms) {
    const Interrupts handled(interrupts != 0);
    for (int32_t i = 0; i < count; ++i) {
        Running* running = sk_launch_begin(launches[i].program);
        if (running == nullptr) return kClosed;
        fill_values(launches[i], *running, values, sizes);
        running->position = i;
        if (run(running, running->values.data(), running->sizes.data(), handled) != 0) {
            return reinterpret_cast<int64_t>(running);
        }
        if (times != nullptr) {
            times[2 * i] = running->dispatched_ns;
            times[2 * i + 1] = running->completed_ns;
        }
        if (rooms != nullptr && rooms[i] != nullptr) sk_launch_record(running, rooms[i]);
        sk_launch_end(running);
    }
    return 0;
}

int32_t sk_launch_position(Running* running) { return running->position; }

}  // extern "C"
