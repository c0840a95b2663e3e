// tiling.h: the type of a C function that chooses tiling key and block count of a dynamic op. Works in C and in C++.
//
// A core calls it once per launch, when everything that the op reads has been stored:
//     int my_tiling(const sk_tiling_args* in, sk_tiling_result* out);
// It returns 0, or another number to stop the launch, which then raises LaunchError with that number. Of kernel.h it may
// call sk_fail; the other functions do nothing there, and its block is 0 of 1. Several launches may call it at the same
// time.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
#include <cstring>
extern "C" {
#else
#include <string.h>
#endif

// One argument of the op.
typedef struct sk_tiling_argument {
    const char* name;     // of the parameter
    const void* address;  // of an in or inout buffer; NULL for others: what an op only writes is not there yet
    int64_t bytes;        // from that address to the end of the buffer; 0 for a scalar
    uint64_t scalar;      // the bits of a scalar, in the lowest bytes; 0 for a buffer
} sk_tiling_argument;

typedef struct sk_tiling_args {
    int32_t count;
    const sk_tiling_argument* argument;  // in the order of the op's parameters
    int64_t most_blocks;                 // the block_dim of the sub-kernel
} sk_tiling_args;

typedef struct sk_tiling_result {
    int64_t key;     // 0 unless it is set; must be a key of the sub-kernel's variants
    int64_t blocks;  // must be set, from 0 (the op is skipped) to most_blocks
} sk_tiling_result;

// The argument for the parameter of this name; NULL if there is none.
static inline const sk_tiling_argument* sk_tiling_find(const sk_tiling_args* in, const char* name) {
    for (int32_t i = 0; i < in->count; ++i) {
        if (strcmp(in->argument[i].name, name) == 0) return &in->argument[i];
    }
    return 0;
}

#ifdef __cplusplus
}
#endif
