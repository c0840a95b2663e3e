// shared_state.h: what the chips of an emulated launch share: memory, how far they have come, who acts in which place.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "clocks.h"

namespace emulator {

struct Machine;

struct MemoryLine {  // what is known of a line that a core or an agent has touched
    uint64_t version = 0;
    uint64_t time = 0;
    Clock released;  // words: what a load of it is ordered after
    std::unique_ptr<Shadow> shadow;
};

// One chip alone has one for itself. In clocks every core and every agent of every chip has a place.
struct SharedState {
    std::unordered_map<uint64_t, MemoryLine> lines;
    std::vector<Machine*> chips;  // what each runs now
    size_t actors = 0;            // places in a clock
    Machine* active = nullptr;    // the chip whose core runs, or ran last
    volatile uint64_t steps = 0;
    uint64_t progress = 0, seen_progress = 0, stalled_steps = 0;
};

}  // namespace emulator
