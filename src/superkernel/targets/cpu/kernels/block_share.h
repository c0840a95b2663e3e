// block_share.h: the range of work units that belongs to this block.
#pragma once

#include <stdint.h>
#include <superkernel/kernel.h>

#include "vector.h"

namespace {

struct Range {
    int64_t begin, end;
};

SK_INLINE Range block_share(int64_t units) {
    const int64_t block = sk::block_idx(), blocks = sk::block_num();
    return {units * block / blocks, units * (block + 1) / blocks};
}

}  // namespace
