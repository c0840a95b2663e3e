// shared_state.h: what is known of the accesses of all devices that run together, and how far they have come.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../../../emulation/host/clocks.h"

namespace ptx {

using emulation::Clock;

struct Machine;

struct Access {  // the last one of its kind to a granule
    uint32_t at = 0;  // of the warp's clock; 0: none
    uint16_t warp = 0, op = 0;
    uint32_t instruction : 27;
    uint32_t strong : 3;  // 0: weak; 1: at cta scope; 2: cluster; 3: gpu; 4: system
    uint32_t atomic : 1;
    uint32_t bulk : 1;  // through the asynchronous proxy
    Access() : instruction(0), strong(0), atomic(0), bulk(0) {}
};

struct AccessKind {
    bool write = false;
    bool silent = false;  // a write of the bytes that were there
    bool atomic = false;
    uint32_t strong = 0;  // as in Access
    bool bulk = false;
};

struct Cell {
    Access write, read;
    uint32_t readers = 0;  // a reader set + 1, once two warps read without being ordered
};

struct Shadow {  // what is known of the accesses to one range of memory
    uint32_t granule = 4;
    std::vector<Cell> cells;
};

struct Location {  // that warps synchronise through
    Clock system;
    std::vector<Clock> gpu;         // by device
    std::map<uint64_t, Clock> cluster, cta;  // by cluster, by block
};

// A device alone has one for itself. In clocks every warp of every device has a place, and in their second half another.
struct SharedState {
    std::vector<Machine*> devices;  // what each runs now
    size_t warps = 0;
    uint64_t progress = 0;
    std::unordered_map<uint64_t, Location> locations;
    std::vector<std::vector<Access>> reader_sets;
    std::vector<uint32_t> free_reader_sets;
    std::map<uint64_t, std::shared_ptr<Shadow>> shadows;  // of memory that devices share, by its address
};

}  // namespace ptx
