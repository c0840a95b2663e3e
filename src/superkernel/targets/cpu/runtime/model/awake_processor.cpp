// awake_processor.cpp: the processors that call -> one at a time is kept from idling, with the memory of its calls in its caches.
#include "awake_processor.h"

#include <pthread.h>
#include <sched.h>

#include "superkernel/wait.h"
#include "threads.h"

namespace sk::model {
namespace {

constexpr uint64_t kTouchPeriodNs = 50'000;   // between two reads of the memory of calls
constexpr uint64_t kStayNs = 1'000'000;       // the least time on one processor
constexpr uint64_t kInterruptedNs = 5'000;    // between two looks at the clock: another thread has had the processor
constexpr uint64_t kNapNs = 10'000'000;       // a sleep, where the thread may not run, and while a call is running
constexpr size_t kMostKeptBytes = 768 << 10;  // of memory: less than an L2 cache
constexpr size_t kCacheLine = 64;
constexpr int kPausesPerClock = 64;

std::vector<MemoryRange> unless_large(std::vector<MemoryRange> ranges) {
    size_t bytes = 0;
    for (const MemoryRange& range : ranges) bytes += range.bytes;
    if (bytes > kMostKeptBytes) ranges.clear();
    return ranges;
}

}  // namespace

AwakeProcessor::AwakeProcessor(std::vector<MemoryRange> memory) : memory_(unless_large(std::move(memory))) {}

// An unprivileged thread cannot raise its priority again. From here on it must hold no lock, since other threads would wait
// for it until it gets some time; pthread_setschedparam takes the lock of the thread.
void AwakeProcessor::run() {
    const sched_param lowest{};
    if (sched_setscheduler(0, SCHED_IDLE, &lowest) != 0) return;
    int here = kNone;
    uint64_t seen = now_ns(), touched = 0, moved = 0;
    while (!ending_.load(std::memory_order_relaxed)) {
        const int wanted = processor_.load(std::memory_order_relaxed);
        if (wanted == kNone) {
            sleep_ns(kNapNs);
            continue;
        }
        if (wanted != here && seen - moved > kStayNs) {
            if (!follow(wanted)) return;
            here = wanted;
            moved = now_ns();
        }
        for (int i = 0; i < kPausesPerClock; ++i) relax();
        const uint64_t now = now_ns();
        if (now - seen > kInterruptedNs) give_way();
        if (now - touched > kTouchPeriodNs) {
            touch_memory();
            touched = now_ns();
        }
        seen = now_ns();
    }
}

bool AwakeProcessor::follow(int processor) const {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

// The system gives some time to a thread of the lowest priority even where another thread wants all of it. If a call is
// running, this thread has interrupted it.
void AwakeProcessor::give_way() const {
    in_call_.load(std::memory_order_relaxed) ? sleep_ns(kNapNs) : (void)sched_yield();
}

// Asks for every cache line. A prefetch of memory that a model has given back while this thread had no processor does nothing.
void AwakeProcessor::touch_memory() const {
    for (const MemoryRange& range : memory_) {
        for (size_t line = 0; line < range.bytes; line += kCacheLine) __builtin_prefetch(range.begin + line, 0, 2);
    }
}

}  // namespace sk::model
