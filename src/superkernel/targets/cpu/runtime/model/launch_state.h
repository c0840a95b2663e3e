// launch_state.h: what one launch of a context needs beside its arguments, made once and used by every call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "call_rhythm.h"
#include "../host/float_mode.h"
#include "code.h"
#include "superkernel/state.h"
#include "team.h"

namespace sk::model {

class LaunchState : public Launch {
  public:
    // `name`: of the entry, for messages. `solo`: the calling thread runs the whole plan, there are no other threads.
    LaunchState(PlanCode& code, const std::string& name, bool solo, sk_wait wait);
    ~LaunchState();
    LaunchState(const LaunchState&) = delete;
    LaunchState& operator=(const LaunchState&) = delete;

    void set_slot(size_t slot, uint64_t value, int64_t bytes) {
        slot_values_[slot] = value;
        slot_bytes_[slot] = bytes;
    }
    // One launch with the slots as they are; a failed check inside becomes a Failure.
    void run(Team* team);

  private:
    static void run_core(void* state, int core);
    void enter(int core, int part) noexcept;
    void run_whole_plan();
    bool run_team(Team& team, bool measured);
    void run_whole_team(Team& team);
    void run_better_way(Team& team);
    uint64_t patience_for(Team& team, bool measured);
    void reset_team();
    void reset_fault();
    [[noreturn]] void throw_fault();

    PlanCode& code_;
    const std::string name_;
    const bool solo_;
    std::vector<uint64_t> slot_values_;
    std::vector<int64_t> slot_bytes_;
    std::unique_ptr<Progress[]> progress_;
    std::unique_ptr<Activity[]> activity_;
    std::unique_ptr<MarkCounter[]> counters_;
    std::unique_ptr<Rendezvous[]> rendezvous_;
    std::unique_ptr<uint32_t[]> stamp_counts_;
    host::FloatMode float_mode_;  // of the thread that calls
    uint64_t last_call_ns_ = 0;
    CallRhythm rhythm_;
};

}  // namespace sk::model
