// memory_place.h: where the address of one lane leads to, and the record of what a warp touches.
#pragma once
#include "machine.h"

namespace ptx {

struct Place {
    uint8_t* host = nullptr;
    Space space = Space::global;
    Range* range = nullptr;
    Shadow* shadow = nullptr;  // null: accesses are not recorded
    uint64_t offset = 0;       // in the shadow
    uint64_t address = 0;      // generic
    uint64_t key = 0;          // of the location that warps may synchronise through; 0: none
};

Place locate(Warp& warp, const Instruction& instruction, Space space, uint64_t address, uint32_t bytes, int lane, bool write,
             uint32_t alignment);
void check_bank(Warp& warp, uint64_t offset, uint32_t bytes, uint64_t size, const char* what, const char* doing);
Block& block_of_cluster(Warp& warp, uint32_t rank);
void complete_copies(Warp& warp);
void land_copies_of(Warp& warp);  // that arrive at an mbarrier
void polled(Warp& warp, uint64_t address, uint64_t value);  // it read this word to wait for another value

class AccessRun {
public:
    AccessRun(Warp& warp, bool write, uint32_t strong, bool atomic);
    void add(const Place& place, uint32_t bytes, bool silent = false);
    void flush();

private:
    Warp& warp_;
    bool write_;
    uint32_t strong_;
    bool atomic_;
    bool silent_ = false;  // the bytes were there already
    Shadow* shadow_ = nullptr;
    uint64_t begin_ = 0, end_ = 0, address_ = 0;
};

}  // namespace ptx
