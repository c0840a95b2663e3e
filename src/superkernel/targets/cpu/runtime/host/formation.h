// formation.h: whether the cores of a launch are a team of threads, or the calling thread runs the whole plan: "solo".
#pragma once

#include <cstdint>

#include "program.h"

namespace sk::host {

// Decided once per launch, before any step runs.
bool solo_before_region(const Program& program);

// Inside the region, on every core. kTeam: all cores have arrived and run their parts. kSolo, on core 0: the others did
// not arrive in time, and core 0 runs the whole plan. kAbsent: core 0 has done so, there is nothing left to do.
enum class Part { kTeam, kSolo, kAbsent };
Part join_formation(Running& running, int core);

// Counts the cores that this process's launches occupy, during its lifetime.
class BusyCores {
  public:
    explicit BusyCores(int cores);
    ~BusyCores();
    BusyCores(const BusyCores&) = delete;

  private:
    const int cores_;
};

// More threads want processors than there are; cores then block soon instead of spinning.
extern std::atomic<bool> crowded;
void report_blocked(uint64_t ns);  // how long a core was blocked for another core
void report_late_team(uint64_t join_ns);  // after a region whose launch ran solo: how long its join took

// In the child of a fork: launches of other threads do not run here, and the load is unknown.
void forget_load();

// After a fork the threads of the parent's OpenMP run time are not here: no region may begin.
bool region_is_safe();
void region_begins();

}  // namespace sk::host
