// wait.h: how a core waits: spin briefly, then yield, then sleep; the abort word ends every wait.
#pragma once

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include "state.h"

namespace sk {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
}

inline uint64_t ticks() {
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_ia32_rdtsc();
#else
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
#endif
}

inline uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

constexpr int kSpins = 3000;            // some tens of microseconds
constexpr uint64_t kYieldNs = 200'000;  // then yield this long
constexpr long kSleepNs = 20'000;       // then sleep: only then does the scheduler run another thread on this processor
constexpr unsigned long kSlackNs = 1'000;  // timer slack of these sleeps; the default of 50 us would be visible

// Lowers the timer slack of this thread during its lifetime, so that short sleeps end in time.
class LowTimerSlack {
  public:
    LowTimerSlack() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, kSlackNs); }
    ~LowTimerSlack() {
        if (before_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_));
    }

  private:
    const int before_;
};

// True when `reached()` holds, false when the launch was stopped first.
template <class Reached>
__attribute__((noinline)) bool wait_slowly(Launch& launch, Activity& activity, uint32_t step, Reached reached) {
    for (int i = 0; i < kSpins; ++i) {
        if (reached()) return true;
        relax();
    }
    const uint32_t step_before = activity.step.load(std::memory_order_relaxed);
    const Doing doing_before = activity.doing.load(std::memory_order_relaxed);
    activity.step.store(step, std::memory_order_relaxed);
    activity.doing.store(Doing::kWaiting, std::memory_order_relaxed);
    const auto over = [&] { return reached() || launch.abort.load(std::memory_order_acquire) != 0; };
    const uint64_t start = now_ns();
    while (!over() && now_ns() - start < kYieldNs) sched_yield();
    if (!over()) {
        const LowTimerSlack while_sleeping;
        const timespec pause{0, kSleepNs};
        while (!over()) nanosleep(&pause, nullptr);
    }
    const bool met = reached();
    activity.step.store(step_before, std::memory_order_relaxed);
    activity.doing.store(doing_before, std::memory_order_relaxed);
    return met;
}

}  // namespace sk
