// strided_rows.h: tensors as strided rows along one dimension, with up to six outer dimensions.
//
// A kernel's parameters are the outer sizes, and for each tensor the stride along a row and the outer strides, in
// elements. Where there are fewer outer dimensions, the first sizes are 1.
#pragma once

#include "block_share.h"
#include "numbers.h"

namespace {

constexpr int kOuter = 6;

struct OuterSizes {
    int64_t sizes[kOuter];
    SK_INLINE int64_t count() const {
        int64_t product = 1;
        for (const int64_t size : sizes) product *= size;
        return product;
    }
    SK_INLINE int64_t last() const { return sizes[kOuter - 1]; }
};

struct RowStrides {
    int64_t along, outer[kOuter];
    // The offset of the first element of a row.
    SK_INLINE int64_t at(const OuterSizes& rows, int64_t row) const {
        int64_t offset = 0;
        for (int i = kOuter - 1; row != 0; --i) {
            offset += row % rows.sizes[i] * outer[i];
            row /= rows.sizes[i];
        }
        return offset;
    }
    SK_INLINE int64_t last() const { return outer[kOuter - 1]; }
};

#define SK_OUTER_SIZES int64_t size0, int64_t size1, int64_t size2, int64_t size3, int64_t size4, int64_t size5
#define SK_OUTER_SIZES_OF {{size0, size1, size2, size3, size4, size5}}
#define SK_ROW_STRIDES(of) \
    int64_t of##_along, int64_t of##_0, int64_t of##_1, int64_t of##_2, int64_t of##_3, int64_t of##_4, int64_t of##_5
#define SK_ROW_STRIDES_OF(of) {of##_along, {of##_0, of##_1, of##_2, of##_3, of##_4, of##_5}}

}  // namespace
