// check_tables.h: what debug-check=1 knows of a super kernel: the parameters of its calls, and where their memory is.
#pragma once

#include <cstdint>

namespace sk {

struct Launch;

// A parameter of an op: one argument slot.
struct CheckedSlot {
    const char* name;
    const char* declared;  // as the user wrote it
    int32_t buffer;        // < 0: no memory
    uint8_t reads, writes;
    uint8_t parts;  // block i touches only the i-th of equal parts
    uint8_t early;  // may be read before wait_previous()
    int64_t bytes;  // of its type; < 0: up to the end of the buffer
};

// One step of the plan; only calls have slots.
struct CheckedStep {
    int32_t first, count;  // slots
    int32_t blocks;        // into which @block divides; 0: chosen at run time, nothing is promised
    uint8_t waits;         // the sub-kernel waits inside
    uint8_t signals;       // nothing is touched after set_next()
    uint8_t stamp;         // of its writes, not 0
};

// The memory of one launch. Every buffer is in a slab of 2^shift bytes, far from both of its ends.
struct CheckTables {
    const CheckedStep* steps;
    const CheckedSlot* slots;
    int32_t slabs;
    int32_t shift;
    uint64_t base;            // of slab 0
    uint64_t total;           // bytes of all slabs
    uint64_t guard;           // the address space around them, in which nothing may be touched
    uint64_t guard_bytes;
    uint64_t shadow;          // behind an address: the stamp of the op that wrote this byte last
    const uint64_t* begin;    // per slab: its buffer
    const uint64_t* end;
    void (*publish)(Launch*);  // lets the caller's memory have what was written so far
};

}  // namespace sk
