// clocks.h: what is known of the accesses to each place: which was the last, in terms of vector clocks.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "../../../emulation/host/clocks.h"

namespace emulator {

using emulation::Clock;

constexpr uint64_t kGrain = 4;  // bytes that are watched together
constexpr size_t kGrains = 64 / kGrain;
constexpr uint32_t kNobody = UINT32_MAX;

struct Access {
    uint32_t core = kNobody, at = 0, op = kNobody;
};

struct Cell {
    Access write;             // the last one that landed
    Access read;              // the last one, and below all those that it does not follow
    Access intent;            // a store that has not landed: in a cache, or on its way
    bool intent_cached = false;
    std::unique_ptr<std::vector<Access>> readers;  // per core, once there are two
};

struct Shadow {  // of one cache line
    Cell cells[kGrains];
};

}  // namespace emulator
