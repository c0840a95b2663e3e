// tsan.h: what tsan.cpp must know of the emitted entry that it launches. The entry's file defines `launched`.
#pragma once
#include <stdint.h>

namespace sk {
struct Launch;
}

struct LaunchedEntry {
    void (*entry)(sk::Launch*, int);
    int32_t cores;
    int32_t rendezvous;
    int32_t agent_tilings;  // of these the control agent is asked
    int32_t tilings;        // all of them
    int32_t tiling_reads;   // the buffer that the agent looks at
    int32_t buffers;        // names that are memory; event words follow them
    int32_t events;
    int32_t counters;
    int32_t slot_count;
    const int32_t* slots;  // the source of each slot, as Numbering.slot_sources gives it
};

extern const LaunchedEntry launched;
