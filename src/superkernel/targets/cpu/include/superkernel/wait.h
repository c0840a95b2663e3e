// wait.h: how a core waits: spin briefly, then give the processor away, then sleep; always with an eye on the abort word.
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
constexpr long kSleepNs = 20'000;       // then nap: only a sleeper's processor is lent to a core that has none
constexpr unsigned long kSlackNs = 1'000;  // how late a nap may end; the system's own 50 us would show

// Short naps end in time while one of these lives.
class Punctual {
  public:
    Punctual() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, kSlackNs); }
    ~Punctual() {
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
        const Punctual while_napping;
        const timespec nap{0, kSleepNs};
        while (!over()) nanosleep(&nap, nullptr);
    }
    const bool met = reached();
    activity.step.store(step_before, std::memory_order_relaxed);
    activity.doing.store(doing_before, std::memory_order_relaxed);
    return met;
}

}  // namespace sk
