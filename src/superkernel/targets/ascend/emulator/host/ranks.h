// ranks.h: chips that run together, one per rank: they share memory and words, and each launches by itself.
#pragma once
#include "machine.h"

namespace emulator {

struct Ranks {
    std::shared_ptr<SharedState> shared = std::make_shared<SharedState>();
    Random random;
    bool in_turn = false;  // the ranks go on one after the other; else the seed chooses, and may favour one for long
    std::string error;

    void join(Machine& m, size_t place, const char* name, const Machine* before);
    void run(Machine* (*next)(int rank));  // the next launch of a rank; null: it has none
};

}  // namespace emulator
