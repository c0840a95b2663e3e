// grouped_mm.cpp: one matrix product per group; where groups begin and end is read when the kernel runs.
//
// Compiled with SK_ELEMENT, and SK_OFFSET, the type of the ends of groups. Ends are understood as slices of torch:
// negative ones count from the end, larger ones stop there, and a group that ends before it begins is empty. Blocks
// divide columns, and each follows all groups in order; what no group covers is zero.
#include "grouped_mm_rows.h"

namespace {

using T = SK_ELEMENT;
using Offset = SK_OFFSET;

constexpr int64_t kGranule = 16;  // columns that blocks do not divide

struct Slice {
    int64_t begin, end;
};

SK_INLINE int64_t within(int64_t index, int64_t size) {
    if (index < 0) index += size;
    return index < 0 ? 0 : index > size ? size : index;
}

SK_INLINE Slice slice(int64_t begin, int64_t end, int64_t size) {
    const Slice found = {within(begin, size), within(end, size)};
    return {found.begin, found.end < found.begin ? found.begin : found.end};
}

SK_INLINE Slice columns_of_block(int64_t n) {
    const int64_t granules = (n + kGranule - 1) / kGranule, block = sk::block_idx(), blocks = sk::block_num();
    const int64_t begin = granules * block / blocks * kGranule, end = granules * (block + 1) / blocks * kGranule;
    return {smaller(begin, n), smaller(end, n)};
}

void clear(const Product<T>& p, int64_t begin, int64_t end, Slice columns) {
    for (int64_t row = begin; row < end; ++row)
        for (int64_t j = columns.begin; j < columns.end; ++j) from_float(0, p.out[row * p.out_row + j * p.out_column]);
}

}  // namespace

#define SK_SIZES int64_t groups, int64_t m, int64_t n, int64_t k
#define SK_STRIDES(of) int64_t of##_group, int64_t of##_row, int64_t of##_column

// Groups of rows of a, each with a matrix of b.
extern "C" void groups_of_rows(const T* a, const T* b, T* out, const Offset* ends, int64_t step, SK_SIZES,
                               SK_STRIDES(a), SK_STRIDES(b), SK_STRIDES(out)) {
    (void)a_group, (void)out_group;
    const Product<T> whole = {a, b, out, m, n, k, a_row, a_column, b_row, b_column, out_row, out_column};
    const Slice columns = columns_of_block(n);
    if (columns.begin == columns.end) return;
    bool in_order = true;
    int64_t before = 0;
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t end = ends[group * step];
        in_order = in_order && before <= end && end <= m;
        before = end;
    }
    clear(whole, in_order ? before : 0, m, columns);
    before = 0;
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t end = ends[group * step];
        const Slice rows = slice(before, end, m);
        before = end;
        if (rows.begin == rows.end) continue;
        Product<T> part = whole;
        part.a += rows.begin * a_row;
        part.b += group * b_group;
        part.out += rows.begin * out_row;
        part.m = rows.end - rows.begin;
        product_columns(part, columns.begin, columns.end);
    }
}

// Groups of columns of a and rows of b, each with a matrix of its own in out.
extern "C" void groups_of_depth(const T* a, const T* b, T* out, const Offset* ends, int64_t step, SK_SIZES,
                                SK_STRIDES(a), SK_STRIDES(b), SK_STRIDES(out)) {
    (void)a_group, (void)b_group;
    const Slice columns = columns_of_block(n);
    int64_t before = 0;
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t end = ends[group * step];
        const Slice depth = slice(before, end, k);
        before = end;
        const Product<T> part = {a + depth.begin * a_column,
                                 b + depth.begin * b_row,
                                 out + group * out_group,
                                 m,
                                 n,
                                 depth.end - depth.begin,
                                 a_row,
                                 a_column,
                                 b_row,
                                 b_column,
                                 out_row,
                                 out_column};
        product_columns(part, columns.begin, columns.end);
    }
}
