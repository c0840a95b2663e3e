// window.h: the shared memory of one collective: a line of words for each rank, then two slots for each rank.
//
// Works in kernels and in the host library. model/window_layout.py describes the same layout in Python.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sk {

constexpr size_t kRankLine = 128;
constexpr uint32_t kRankFailed = 0xffffffffu;  // as `arrived`: the rank has failed; never a round

// The words of one rank. Only its own process writes them, except `sleepers`.
struct alignas(kRankLine) RankLine {
    std::atomic<uint32_t> arrived;   // the last round that this rank has published, or kRankFailed
    std::atomic<uint32_t> sleepers;  // cores of all ranks that are blocked on `arrived`, by a futex that processes share
    uint32_t round;                  // the round that this rank is in: its host writes it before a segment begins
    uint32_t patience_ms;            // how long this rank waits for others; 0: without a limit
    uint32_t global_rank;            // for reports, as below
    uint32_t process;
    uint64_t stride;                 // from one slot to the next, as this rank's host has laid the window out
    uint32_t thread;                 // that began the round, as the kernel numbers threads; 0: not known
    uint32_t unused[23];
};
static_assert(sizeof(RankLine) == kRankLine, "a rank's words fill its line");

inline RankLine* rank_lines(void* window) { return static_cast<RankLine*>(window); }
inline const RankLine* rank_lines(const void* window) { return static_cast<const RankLine*>(window); }

// The round that a rank is in; a kernel asks for its own rank.
inline uint32_t round_of(const void* window, uint32_t rank) { return rank_lines(window)[rank].round; }

// The stride of a window, from the words of this rank: where ranks have slots of different sizes, the kernels of a rank
// know it only when the ranks have met.
inline uint64_t stride_of(const void* window, uint32_t rank) { return rank_lines(window)[rank].stride; }

// Where the slots begin: behind the lines, and at a page if they are as large as one.
inline uint64_t slots_offset(uint32_t ranks, uint64_t stride) {
    const uint64_t unit = stride >= 4096 ? 4096 : 64;
    return (ranks * kRankLine + unit - 1) / unit * unit;
}

// Where `rank` stores in `round`; `stride` is WindowLayout.stride.
inline char* slot(void* window, uint32_t ranks, uint64_t stride, uint32_t round, uint32_t rank) {
    return static_cast<char*>(window) + slots_offset(ranks, stride) + (uint64_t(round & 1) * ranks + rank) * stride;
}
inline const char* slot(const void* window, uint32_t ranks, uint64_t stride, uint32_t round, uint32_t rank) {
    return slot(const_cast<void*>(window), ranks, stride, round, rank);
}

// Whether a rank whose last published round is `arrived` has published `round`: rounds wrap.
inline bool has_arrived(uint32_t arrived, uint32_t round) {
    return arrived != kRankFailed && int32_t(arrived - round) >= 0;
}

// After the store of `arrived`: wakes the cores of all processes that are blocked on it.
inline void wake_ranks(RankLine& line) {
    if (__builtin_expect(line.sleepers.load(std::memory_order_seq_cst) == 0, 1)) return;
    syscall(SYS_futex, &line.arrived, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

// This rank has arrived in its round: publishes (release) everything that its cores are known to have stored. The store
// is in one order with the load of `sleepers`, as a membarrier of another process would not reach this one.
inline void publish_arrival(RankLine& own) {
    uint32_t before = own.arrived.load(std::memory_order_relaxed);
    do {
        if (before == kRankFailed) return;  // its host has given up
    } while (!own.arrived.compare_exchange_weak(before, own.round, std::memory_order_seq_cst));
    wake_ranks(own);
}

}  // namespace sk
