// strided_rows.h: tensors as strided rows along one dimension, with up to three outer dimensions.
//
// A kernel's parameters are the three outer sizes, and for each tensor the stride along a row and three outer strides,
// in elements.
#pragma once

#include "block_share.h"
#include "numbers.h"

namespace {

struct OuterSizes {
    int64_t sizes[3];
    SK_INLINE int64_t count() const { return sizes[0] * sizes[1] * sizes[2]; }
};

struct RowStrides {
    int64_t along, outer[3];
    // The offset of the first element of a row.
    SK_INLINE int64_t at(const OuterSizes& rows, int64_t row) const {
        const int64_t inner = row % rows.sizes[2], rest = row / rows.sizes[2];
        return inner * outer[2] + rest % rows.sizes[1] * outer[1] + rest / rows.sizes[1] * outer[0];
    }
};

#define SK_OUTER_SIZES int64_t size0, int64_t size1, int64_t size2
#define SK_OUTER_SIZES_OF {{size0, size1, size2}}
#define SK_ROW_STRIDES(of) int64_t of##_along, int64_t of##_0, int64_t of##_1, int64_t of##_2
#define SK_ROW_STRIDES_OF(of) {of##_along, {of##_0, of##_1, of##_2}}

}  // namespace
