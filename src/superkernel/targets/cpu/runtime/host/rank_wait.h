// rank_wait.h: how a core waits for a rank, and what the watchdog must know of it.
#pragma once

#include "superkernel/window.h"
#include "program.h"

namespace sk::host {

// Launch::wait_rank
bool wait_for_rank(Launch* launch, Activity* activity, uint32_t step, RankLine* lines, uint32_t own, uint32_t other);

// The core of a launch that waits for a rank; < 0: there is none.
int core_awaiting_rank(const Running& running);

}  // namespace sk::host
