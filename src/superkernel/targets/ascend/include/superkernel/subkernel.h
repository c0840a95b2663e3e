// What a sub-kernel may ask of the super kernel that calls it. Include it after kernel_operator.h.
//
// sk_wait_previous()   all that the op reads has been stored: call it once, before the first read of another op's output
// sk_set_next()        this core has made its last store: call it once, after that
// sk_sync_all()        a barrier over the cores of the op; sk_sync_all<true>() for a kernel on cube and vector cores
#pragma once

#include <cstdint>

#ifdef SK_EMULATED  // the same text, with loads and stores that the emulator sees; it sets the variables of the core that runs
#include "superkernel/host_kernel.h"
#define SK_CORE_LOCAL
#define SK_REACHED(point) sk_emu_reached(SK_REACHED_##point)
#else
#define SK_REACHED(point)
static inline __aicore__ uint64_t sk_load(__gm__ uint64_t* word) { return *(volatile __gm__ uint64_t*)word; }
static inline __aicore__ void sk_store(__gm__ uint64_t* word, uint64_t value) {
    *(volatile __gm__ uint64_t*)word = value;
}
#endif

#ifndef SK_CORE_LOCAL
#define SK_CORE_LOCAL [[block_local]]  // one variable per core
#endif

#ifndef SK_CUBE_FLAG
#define SK_CUBE_FLAG 11
#define SK_VECTORS_TO_CUBE_FLAG 12
#define SK_CUBE_TO_VECTORS_FLAG 13
#define SK_VECTOR_FLAG 14
#endif

// Per pair code (class of the producer << 2 | class of the consumer; cube 0, vector 1, mix 2): 1 wait for all cores of
// the own class, 2 signal inside the block, 4 wait inside the block. Code 15 stands for nothing to wait for.
// Cube and vector code are linked into one object: their words have different names.
#if defined(SK_ON_CUBE) || defined(__DAV_C220_CUBE__)
#define SK_OWN(name) name##_cube
static const uint8_t sk_pair_row[16] = {1, 3, 3, 0, 4, 0, 4, 0, 5, 3, 7, 0, 0, 0, 0, 0};
#define SK_CLASS_FLAG SK_CUBE_FLAG
#define SK_SIGNAL_FLAG SK_CUBE_TO_VECTORS_FLAG
#define SK_BLOCK_FLAG SK_VECTORS_TO_CUBE_FLAG
#define SK_STORE_PIPE PIPE_FIX
#else
#define SK_OWN(name) name##_vector
static const uint8_t sk_pair_row[16] = {0, 4, 4, 0, 3, 1, 3, 0, 3, 5, 7, 0, 0, 0, 0, 0};
#define SK_CLASS_FLAG SK_VECTOR_FLAG
#define SK_SIGNAL_FLAG SK_VECTORS_TO_CUBE_FLAG
#define SK_BLOCK_FLAG SK_CUBE_TO_VECTORS_FLAG
#define SK_STORE_PIPE PIPE_MTE3
#endif

extern "C" {
SK_CORE_LOCAL extern uint64_t SK_OWN(sk_early_start);  // bits 0 to 3: pair code; bit 4: arrive
SK_CORE_LOCAL extern uint64_t SK_OWN(sk_feed);         // the control word that block 0 publishes barriers in, or 0
}

static inline __aicore__ void sk_follow_row(uint8_t row) {
    if (row & 1) wait_flag_dev(SK_CLASS_FLAG);
    if (row & 2) ffts_cross_core_sync(SK_STORE_PIPE, 1 | 2 << 4 | SK_SIGNAL_FLAG << 8);
    if (row & 4) wait_flag_dev(SK_BLOCK_FLAG);
}

static inline __aicore__ void sk_wait_previous() {
    sk_follow_row(sk_pair_row[SK_OWN(sk_early_start) & 15]);
    SK_REACHED(WAIT);
}

static inline __aicore__ void sk_set_next() {
    SK_REACHED(SET);
    if (SK_OWN(sk_early_start) & 16) ffts_cross_core_sync(SK_STORE_PIPE, 1 | SK_CLASS_FLAG << 8);
}

template <bool mixed = false>
static inline __aicore__ void sk_sync_all() {
    pipe_barrier(PIPE_ALL);
    SK_REACHED(BARRIER);
    if (SK_OWN(sk_feed) != 0) {  // cores without a block join the barriers that are published
        __gm__ uint64_t* const word = (__gm__ uint64_t*)SK_OWN(sk_feed);
        dcci((__gm__ void*)word, cache_line_t::SINGLE_CACHE_LINE, dcci_dst_t::CACHELINE_OUT);
        // running number; kind: with the cores of the other class; valid
        sk_store(word, ((sk_load(word) + 1) & 0xffffffff) | (uint64_t)mixed << 32 | 1ull << 62);
        dcci((__gm__ void*)word, cache_line_t::SINGLE_CACHE_LINE, dcci_dst_t::CACHELINE_OUT);
    }
    if (mixed && SK_CLASS_FLAG == SK_VECTOR_FLAG) {  // with cube cores in the barrier, vectors meet through their cube
        sk_follow_row(2 | 4);
        return;
    }
    if (mixed) wait_flag_dev(SK_BLOCK_FLAG);
    ffts_cross_core_sync(SK_STORE_PIPE, 1 | SK_CLASS_FLAG << 8);
    wait_flag_dev(SK_CLASS_FLAG);
    if (mixed) ffts_cross_core_sync(SK_STORE_PIPE, 1 | 2 << 4 | SK_SIGNAL_FLAG << 8);
}
