// blocking.cpp: a condition that other cores or threads will meet -> the wait of one core for it.
#include "blocking.h"

#include "formation.h"

namespace sk::host {

bool wait_for(Launch* launch, Activity* activity, uint32_t step, void* word, std::atomic<uint32_t>* sleepers,
              bool (*reached)(void*), void* condition) {
    const bool few_spins = crowded.load(std::memory_order_relaxed);
    for (int i = few_spins ? kCrowdedSpins : kSpins; i > 0; --i) {
        if (reached(condition)) return true;
        relax();
    }
    const uint32_t step_before = activity->step.load(std::memory_order_relaxed);
    const Doing doing_before = activity->doing.load(std::memory_order_relaxed);
    activity->step.store(step, std::memory_order_relaxed);
    activity->doing.store(Doing::kWaiting, std::memory_order_relaxed);
    const auto over = [&] { return reached(condition) || launch->abort.load(std::memory_order_acquire) != 0; };
    const uint64_t start = now_ns();
    while (!few_spins && !over() && now_ns() - start < kYieldNs) sched_yield();
    if (!over()) {
        if (word == nullptr) {
            const LowTimerSlack while_sleeping;
            const timespec pause{0, kSleepNs};
            while (!over()) nanosleep(&pause, nullptr);
        } else {
            FutexWord futex;
            futex.address = word;
            futex.sleepers = sleepers;
            block_until(*launch, futex, over);
            const uint64_t blocked_ns = now_ns() - start;
            if (blocked_ns > kLongBlockNs) report_blocked(blocked_ns);
        }
    }
    const bool met = reached(condition);
    activity->step.store(step_before, std::memory_order_relaxed);
    activity->doing.store(doing_before, std::memory_order_relaxed);
    return met;
}

}  // namespace sk::host
