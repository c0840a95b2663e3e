// wait.h: how a core waits: it spins briefly, then blocks on a futex, so that its processor is free for the core that it
// waits for; the abort word ends every wait.
#pragma once

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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
constexpr int kCrowdedSpins = 200;      // another thread needs the processor
constexpr uint64_t kYieldNs = 200'000;  // then yield this long, on a machine with idle processors
constexpr uint64_t kLongBlockNs = 500'000;  // a core that was blocked this long asks whether the machine is crowded
constexpr long kWakeNs = 10'000'000;    // a blocked core looks at the abort word this often
constexpr long kSleepNs = 20'000;       // sleep between two looks at a word whose writer wakes no core
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

// A word that cores may block on, and how many do. Without a word the writer is outside of the launch and wakes no core.
struct FutexWord {
    void* address = nullptr;
    std::atomic<uint32_t>* sleepers = nullptr;

    FutexWord() = default;
    template <class Word>
    FutexWord(const std::atomic<Word>& word, std::atomic<uint32_t>& count)
        : address(const_cast<std::atomic<Word>*>(&word)), sleepers(&count) {
        static_assert(sizeof(std::atomic<Word>) == sizeof(uint32_t), "a futex has 32 bits");
    }
    uint32_t load() const { return static_cast<std::atomic<uint32_t>*>(address)->load(std::memory_order_acquire); }
    void wait(uint32_t seen, long ns) const {
        const timespec limit{0, ns};
        syscall(SYS_futex, address, FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
    }
    void wake() const { syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0); }
};

// After the store of a word. The store must come before the load of `sleepers`; a processor may exchange them, but the
// sleeper issues a membarrier between its own store of `sleepers` and its load of the word, which orders this thread's
// accesses too, so that the fast path needs no fence.
template <class Word>
inline void wake_sleepers(const std::atomic<Word>& word, std::atomic<uint32_t>& sleepers) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (__builtin_expect(sleepers.load(std::memory_order_relaxed) != 0, 0)) FutexWord(word, sleepers).wake();
}

// The answer to the request of a dynamic op; cores that select its variant go on.
inline void answer_tiling(Tiling& tiling, int64_t key, int64_t blocks) {
    tiling.key.store(key, std::memory_order_relaxed);
    tiling.blocks.store(blocks, std::memory_order_relaxed);
    tiling.lock.store(1, std::memory_order_relaxed);
    tiling.answered.store(1, std::memory_order_release);
    wake_sleepers(tiling.answered, tiling.sleepers);
}

template <class Over>
void block_until(const Launch& launch, const FutexWord& word, Over over) {
    word.sleepers->fetch_add(1);
    if (launch.membarrier) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    const LowTimerSlack while_blocked;
    for (;;) {
        const uint32_t seen = word.load();
        if (over()) break;
        word.wait(seen, launch.membarrier ? kWakeNs : kSleepNs);
    }
    word.sleepers->fetch_sub(1);
}

template <class Over>
void nap_until(Over over) {
    const LowTimerSlack while_sleeping;
    const timespec pause{0, kSleepNs};
    while (!over()) nanosleep(&pause, nullptr);
}

// True when `reached()` holds, false when the launch was stopped first.
template <class Reached>
__attribute__((noinline)) bool wait_slowly(Launch& launch, Activity& activity, uint32_t step, FutexWord word,
                                           Reached reached) {
    const bool crowded = launch.crowded->load(std::memory_order_relaxed);
    for (int i = crowded ? kCrowdedSpins : kSpins; i > 0; --i) {
        if (reached()) return true;
        relax();
    }
    const uint32_t step_before = activity.step.load(std::memory_order_relaxed);
    const Doing doing_before = activity.doing.load(std::memory_order_relaxed);
    activity.step.store(step, std::memory_order_relaxed);
    activity.doing.store(Doing::kWaiting, std::memory_order_relaxed);
    const auto over = [&] { return reached() || launch.abort.load(std::memory_order_acquire) != 0; };
    const uint64_t start = now_ns();
    while (!crowded && !over() && now_ns() - start < kYieldNs) sched_yield();
    if (!over()) {
        if (word.address == nullptr) {
            nap_until(over);
        } else {
            block_until(launch, word, over);
            const uint64_t blocked_ns = now_ns() - start;
            if (blocked_ns > kLongBlockNs) launch.blocked(&launch, blocked_ns);
        }
    }
    const bool met = reached();
    activity.step.store(step_before, std::memory_order_relaxed);
    activity.doing.store(doing_before, std::memory_order_relaxed);
    return met;
}

}  // namespace sk
