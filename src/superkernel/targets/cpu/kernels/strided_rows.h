// strided_rows.h: tensors as lines along one dimension, and the lines in up to three directions around it.
//
// A kernel's parameters are sizes of the three directions, and for each tensor a stride along the line and three from
// line to line, in elements.
#pragma once

#include <superkernel/kernel.h>

#include "numbers.h"

namespace {

struct Around {
    int64_t sizes[3];
    SK_INLINE int64_t count() const { return sizes[0] * sizes[1] * sizes[2]; }
};

struct LineStrides {
    int64_t along, around[3];
    // Where a line begins.
    SK_INLINE int64_t at(const Around& lines, int64_t line) const {
        const int64_t inner = line % lines.sizes[2], rest = line / lines.sizes[2];
        return inner * around[2] + rest % lines.sizes[1] * around[1] + rest / lines.sizes[1] * around[0];
    }
};

#define SK_AROUND int64_t size0, int64_t size1, int64_t size2
#define SK_AROUND_OF {{size0, size1, size2}}
#define SK_LINE(of) int64_t of##_along, int64_t of##_0, int64_t of##_1, int64_t of##_2
#define SK_LINE_OF(of) {of##_along, {of##_0, of##_1, of##_2}}

struct Part {
    int64_t begin, end;
};

// The part of `units` that belongs to this block.
SK_INLINE Part part_of_block(int64_t units) {
    const int64_t block = sk::block_idx(), blocks = sk::block_num();
    return {units * block / blocks, units * (block + 1) / blocks};
}

}  // namespace
