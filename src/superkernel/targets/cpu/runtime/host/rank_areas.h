// rank_areas.h: what the watchdog does for launches that wait for other ranks.
#pragma once

namespace sk::host {

// Called by the watchdog thread from time to time while launches run, under its mutex.
void look_after_ranks();
// In the child of a fork.
void forget_rank_areas();

}  // namespace sk::host
