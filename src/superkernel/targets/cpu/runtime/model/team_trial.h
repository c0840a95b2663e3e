// team_trial.h: times of launches on one thread and on a team -> which of both a plan uses.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <atomic>

namespace sk::model {

// The first launches of a plan try both; later a few try the other way again, more often in the beginning: new threads may
// share a processor with the caller until the system moves them. The least time counts: whatever else the machine does only
// adds to it. Threads that launch one plan at the same time may share a trial.
class TeamTrial {
  public:
    enum class Way { kSolo, kTeam };
    struct Choice {
        Way way;
        bool measured;
    };

    Choice next() {
        const uint32_t number = launches_.fetch_add(1, std::memory_order_relaxed);
        if (number < kWarmUp) return {Way::kSolo, false};
        if (number < kWarmUp + kTrials) return {Way::kSolo, true};
        if (number < kWarmUp + 3 * kTrials) return {Way::kTeam, true};
        const Way best = better();
        const bool tried_again = number < kYoung ? number % kShortPeriod < kTrials / 2 : number % kPeriod < kTrials;
        if (!tried_again) return {best, false};
        return {best == Way::kSolo ? Way::kTeam : Way::kSolo, true};
    }

    void measured(Way way, uint64_t ns) {
        std::atomic<uint64_t>& least = way == Way::kSolo ? solo_ns_ : team_ns_;
        const uint64_t before = least.load(std::memory_order_relaxed);
        least.store(before == 0 ? ns : std::min(before, ns), std::memory_order_relaxed);
    }

    // 0: not measured yet
    uint64_t solo_ns() const { return solo_ns_.load(std::memory_order_relaxed); }
    // A team is known to take more than two thirds of the time of one thread.
    bool gains_little() const {
        const uint64_t team = team_ns_.load(std::memory_order_relaxed);
        return team != 0 && 3 * team > 2 * solo_ns();
    }

  private:
    static constexpr uint32_t kWarmUp = 2, kTrials = 8, kPeriod = 8192, kYoung = 1024, kShortPeriod = 128;

    // A team that never formed is asked for again.
    Way better() const {
        const uint64_t team = team_ns_.load(std::memory_order_relaxed);
        return team != 0 && solo_ns() <= team ? Way::kSolo : Way::kTeam;
    }

    std::atomic<uint32_t> launches_{0};
    std::atomic<uint64_t> solo_ns_{0}, team_ns_{0};
};

}  // namespace sk::model
