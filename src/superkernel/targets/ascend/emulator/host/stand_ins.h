// stand_ins.h: what takes the place of a sub-kernel whose code is for another processor: what it reads and writes.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace emulator {

enum class Reads : int32_t { nothing, scalar, whole, block, chunk };  // as in stand_ins.py

struct Touch {  // of one parameter; words are of 4 bytes
    uint32_t slot;       // from the first slot of the op
    Reads reads;
    bool writes;         // this worker's chunk
    bool per_block;      // a block touches an equal part of it
    uint32_t skip;       // bytes between the address in the slot and the first word
    uint32_t words;
    uint32_t grain;      // words that one worker has to itself
    bool cached_in, cached_out;  // through the data cache, which the entry maintains
};

struct Follow {  // an op that must have come before: its footprint
    uint64_t address;
    uint32_t words;
    bool own;  // only the word of the same worker
};

struct StandIn {
    uint64_t footprint = 0;  // a word per worker, stored at its end
    uint64_t meeting = 0;    // a word per barrier and worker
    int64_t workers_per_block = 1, most_workers = 1;
    uint32_t barriers = 0;
    bool waits = false, sets = false;  // inside itself
    bool always_sets = false;          // whatever the entry says, as objects that CANN built do
    std::vector<Touch> touches;
    std::vector<Follow> follows;
    std::map<std::string, uint64_t> keys;  // function -> its tiling key
};

}  // namespace emulator
