// rank_wait.cpp: the words of a rank in a window -> the wait of one core for its arrival.
#include "rank_wait.h"

#include "blocking.h"
#include "formation.h"

namespace sk::host {

// As block_until, on a word that other processes write: the futex is not private, and no membarrier orders the accesses.
template <class Over>
static void block_on_rank(RankLine& line, Over over) {
    line.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const LowTimerSlack while_blocked;
    for (;;) {
        const uint32_t seen = line.arrived.load(std::memory_order_seq_cst);
        if (over()) break;
        const timespec limit{0, kWakeNs};
        syscall(SYS_futex, &line.arrived, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
    line.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

bool wait_for_rank(Launch* launch, Activity* activity, uint32_t step, RankLine* lines, uint32_t own, uint32_t other) {
    RankLine& line = lines[other];
    const uint32_t round = lines[own].round;
    const auto settled = [&] {
        const uint32_t arrived = line.arrived.load(std::memory_order_acquire);
        return arrived == kRankFailed || has_arrived(arrived, round);
    };
    const bool few_spins = crowded.load(std::memory_order_relaxed);
    for (int i = few_spins ? kCrowdedSpins : kSpins; i > 0 && !settled(); --i) relax();
    if (!settled()) {
        const uint32_t step_before = activity->step.load(std::memory_order_relaxed);
        const Doing doing_before = activity->doing.load(std::memory_order_relaxed);
        activity->step.store(step, std::memory_order_relaxed);
        activity->patience_ms.store(lines[own].patience_ms, std::memory_order_relaxed);
        activity->awaited.store(&line, std::memory_order_relaxed);
        activity->doing.store(Doing::kWaiting, std::memory_order_relaxed);
        const auto over = [&] { return settled() || launch->abort.load(std::memory_order_acquire) != 0; };
        const uint64_t start = now_ns();
        while (!few_spins && !over() && now_ns() - start < kYieldNs) sched_yield();
        if (!over()) block_on_rank(line, over);
        activity->step.store(step_before, std::memory_order_relaxed);
        activity->doing.store(doing_before, std::memory_order_relaxed);
        activity->awaited.store(nullptr, std::memory_order_relaxed);
    }
    const uint32_t arrived = line.arrived.load(std::memory_order_acquire);
    if (arrived == kRankFailed) launch->stop(Fault::kRankFailed, step, line.global_rank);
    return has_arrived(arrived, round);
}

int core_awaiting_rank(const Running& running) {
    for (int core = 0; core < running.cores; ++core) {
        if (running.activity[core].awaited.load() != nullptr) return core;
    }
    return -1;
}

}  // namespace sk::host
