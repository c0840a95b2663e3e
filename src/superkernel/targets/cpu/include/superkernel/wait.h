// wait.h: clocks, and how a core waits for a condition or wakes the cores that are blocked on a word.
#pragma once

#include <linux/futex.h>
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

// True when `reached()` holds, false when the launch was stopped first. The host library waits: see blocking.h there.
template <class Reached>
inline bool wait_slowly(Launch& launch, Activity& activity, uint32_t step, const FutexWord& word, Reached reached) {
    const auto holds = [](void* condition) { return (*static_cast<Reached*>(condition))(); };
    return launch.wait(&launch, &activity, step, word.address, word.sleepers, holds, &reached);
}

}  // namespace sk
