// scans.cpp: running sums, products and extremes along every line of a tensor.
//
// Compiled with SK_FROM and SK_TO, the element types, and one of SK_CUMSUM, SK_CUMPROD, SK_CUMMAX, SK_CUMMIN. A line is
// followed from its begin to its end by one block, as torch does it, so results are torch's and do not depend on the
// number of blocks.
#include "strided_rows.h"

namespace {

using From = SK_FROM;
using To = SK_TO;

constexpr int64_t kSide = 32;  // lines that are followed side by side

// Calls run(first, count) for this block's lines, up to `most` neighbours of the last direction at a time.
template <class Run>
SK_INLINE void for_neighbours(const Around& around, int64_t most, const Run& run) {
    const Part lines = part_of_block(around.count());
    for (int64_t line = lines.begin; line < lines.end;) {
        int64_t count = around.sizes[2] - line % around.sizes[2];
        if (count > most) count = most;
        if (count > lines.end - line) count = lines.end - line;
        run(line, count);
        line += count;
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
SK_APART void scan(const From* from, To* to, int64_t length, int64_t count, int64_t from_along, int64_t to_along,
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

// One line alone: the total stays in a register.
SK_APART void scan_one(const From* from, To* to, int64_t length, int64_t from_along, int64_t to_along) {
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
SK_APART void best_so_far(const From* from, To* values, int64_t* indices, int64_t length, int64_t from_along,
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
extern "C" void scanned_lines(const From* self, To* out, int64_t length, SK_AROUND, SK_LINE(self), SK_LINE(out)) {
    const Around around = SK_AROUND_OF;
    const LineStrides of_self = SK_LINE_OF(self), of_out = SK_LINE_OF(out);
    // Side by side only where that is the way in which elements lie side by side.
    const int64_t most = of_self.around[2] < of_self.along ? kSide : 1;
    for_neighbours(around, most, [&](int64_t line, int64_t count) {
        const From* from = self + of_self.at(around, line);
        To* to = out + of_out.at(around, line);
        const int64_t from_next = of_self.around[2], to_next = of_out.around[2];
        if (count == 1) scan_one(from, to, length, of_self.along, of_out.along);
        else if (from_next == 1 && to_next == 1) scan<true>(from, to, length, count, of_self.along, of_out.along, 1, 1);
        else scan<false>(from, to, length, count, of_self.along, of_out.along, from_next, to_next);
    });
}
#else
extern "C" void scanned_lines(const From* self, To* values, int64_t* indices, int64_t length, SK_AROUND, SK_LINE(self),
                              SK_LINE(values), SK_LINE(indices)) {
    const Around around = SK_AROUND_OF;
    const LineStrides of_self = SK_LINE_OF(self), of_values = SK_LINE_OF(values), of_indices = SK_LINE_OF(indices);
    const Part lines = part_of_block(around.count());
    for (int64_t line = lines.begin; line < lines.end; ++line)
        best_so_far(self + of_self.at(around, line), values + of_values.at(around, line),
                    indices + of_indices.at(around, line), length, of_self.along, of_values.along, of_indices.along);
}
#endif
