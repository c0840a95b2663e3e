// scans.cpp: running sums, products and extremes along every row of a tensor.
//
// Compiled with SK_FROM and SK_TO, the element types, and one of SK_CUMSUM, SK_CUMPROD, SK_CUMMAX, SK_CUMMIN. One
// block scans a whole row in order, as torch does, so results are torch's and do not depend on the number of blocks.
#include "strided_rows.h"

namespace {

using From = SK_FROM;
using To = SK_TO;

constexpr int64_t kSide = 32;  // rows that are scanned side by side

// Calls run(first, count) for this block's rows, up to `most` neighbours of the last outer dimension at a time.
template <class Run>
SK_INLINE void for_neighbours(const OuterSizes& outer, int64_t most, const Run& run) {
    const Range rows = block_share(outer.count());
    for (int64_t row = rows.begin; row < rows.end;) {
        int64_t count = outer.last() - row % outer.last();
        if (count > most) count = most;
        if (count > rows.end - row) count = rows.end - row;
        run(row, count);
        row += count;
    }
}

#if defined(SK_CUMSUM) || defined(SK_CUMPROD)

using Sum = Kind<To>::Sum;

#ifdef SK_CUMSUM
constexpr int kBegin = 0;
SK_INLINE Sum step(Sum total, Sum next) { return total + next; }
#else
constexpr int kBegin = 1;
SK_INLINE Sum step(Sum total, Sum next) { return total * next; }
#endif

// Elements become the type of the result first: 0.7 counts as 0 in a sum of integers.
SK_INLINE Sum converted(From value) {
    To to;
    put(number(value), to);
    return Sum(number(to));
}

template <bool Dense>
SK_NOINLINE void scan(const From* from, To* to, int64_t length, int64_t count, int64_t from_along, int64_t to_along,
                   int64_t from_next, int64_t to_next) {
    Sum totals[kSide];
    for (Sum& total : totals) total = kBegin;
    if (Dense) from_next = to_next = 1;
    for (int64_t i = 0; i < length; ++i, from += from_along, to += to_along) {
        for (int64_t side = 0; side < count; ++side) {
            totals[side] = step(totals[side], converted(from[side * from_next]));
            put(totals[side], to[side * to_next]);
        }
    }
}

// A single row: the total stays in a register.
SK_NOINLINE void scan_row(const From* from, To* to, int64_t length, int64_t from_along, int64_t to_along) {
    Sum total = kBegin;
    for (int64_t i = 0; i < length; ++i) {
        total = step(total, converted(from[i * from_along]));
        put(total, to[i * to_along]);
    }
}

#else

#ifdef SK_CUMMAX
template <class T>
SK_INLINE bool reaches(T next, T best) { return next >= best; }
#else
template <class T>
SK_INLINE bool reaches(T next, T best) { return next <= best; }
#endif

// The last of equal elements counts, and NaN from its first place on.
SK_NOINLINE void best_so_far(const From* from, To* values, int64_t* indices, int64_t length, int64_t from_along,
                          int64_t values_along, int64_t indices_along) {
    int64_t best = 0;
    for (int64_t i = 0; i < length; ++i) {
        const auto next = number(from[i * from_along]), held = number(from[best * from_along]);
        if (is_nan(next) || (!is_nan(held) && reaches(next, held))) best = i;
        values[i * values_along] = from[best * from_along];
        indices[i * indices_along] = best;
    }
}

#endif

}  // namespace

#if defined(SK_CUMSUM) || defined(SK_CUMPROD)
extern "C" void scanned_rows(const From* self, To* out, int64_t length, SK_OUTER_SIZES, SK_ROW_STRIDES(self), SK_ROW_STRIDES(out)) {
    const OuterSizes outer = SK_OUTER_SIZES_OF;
    const RowStrides of_self = SK_ROW_STRIDES_OF(self), of_out = SK_ROW_STRIDES_OF(out);
    // Side by side only where neighbouring rows are closer in memory than neighbours of one row.
    const int64_t most = of_self.last() < of_self.along ? kSide : 1;
    for_neighbours(outer, most, [&](int64_t row, int64_t count) {
        const From* from = self + of_self.at(outer, row);
        To* to = out + of_out.at(outer, row);
        const int64_t from_next = of_self.last(), to_next = of_out.last();
        if (count == 1) scan_row(from, to, length, of_self.along, of_out.along);
        else if (from_next == 1 && to_next == 1) scan<true>(from, to, length, count, of_self.along, of_out.along, 1, 1);
        else scan<false>(from, to, length, count, of_self.along, of_out.along, from_next, to_next);
    });
}
#else
extern "C" void scanned_rows(const From* self, To* values, int64_t* indices, int64_t length, SK_OUTER_SIZES, SK_ROW_STRIDES(self),
                              SK_ROW_STRIDES(values), SK_ROW_STRIDES(indices)) {
    const OuterSizes outer = SK_OUTER_SIZES_OF;
    const RowStrides of_self = SK_ROW_STRIDES_OF(self), of_values = SK_ROW_STRIDES_OF(values), of_indices = SK_ROW_STRIDES_OF(indices);
    const Range rows = block_share(outer.count());
    for (int64_t row = rows.begin; row < rows.end; ++row)
        best_so_far(self + of_self.at(outer, row), values + of_values.at(outer, row),
                    indices + of_indices.at(outer, row), length, of_self.along, of_values.along, of_indices.along);
}
#endif
