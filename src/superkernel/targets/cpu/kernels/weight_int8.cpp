// weight_int8.cpp: floating-point rows times int8 weights with a scale per column: aten::_weight_int8pack_mm.
//
// Compiled with SK_ELEMENT, the element type of rows, scales and results. Weights are contiguous along k. Sums are
// floats and are scaled and rounded once. Blocks divide columns, never k, so the result does not depend on their number.
#include "skinny.h"
#include "weight_only.h"

namespace {

using Element = SK_ELEMENT;

constexpr int64_t kWeightOnlyRows = 8;  // more rows are computed by tiles: a weight is converted once for all of them

struct Int8Columns {
    const Int8Weight* first;
    int64_t step;
    const Element* scales;
    int64_t scales_step;

    SK_INLINE void pack(int64_t column, int64_t columns, int64_t k, int64_t depth, float* panels) const {
        for (int64_t j = 0; j < columns; j += kTileColumns)
            pack_panel(first + (column + j) * step + k, 1, step, depth, least(kTileColumns, columns - j), panels + j * kChunk);
    }
    SK_INLINE void scale(int64_t column, int64_t columns, float* sums) const {
        for (int64_t i = 0; i < columns; ++i) sums[i] *= to_float(scales[(column + i) * scales_step]);
    }
};

// One row as floats, in the order of the parts of a span of weights; zeros fill the last span.
SK_NOINLINE void gather_parts(const Element* from, int64_t step, int64_t count, float* to) {
    constexpr int parts = kParts<Int8Weight>;
    constexpr int64_t span = kSpan<Int8Weight>;
    int64_t done = 0;
    for (; done + span <= count; done += span, to += span) {
        SK_UNROLL
        for (int part = 0; part < parts; ++part) {
            SK_UNROLL
            for (int lane = 0; lane < kLanes; ++lane)
                to[part * kLanes + lane] = to_float(from[(done + lane * parts + part) * step]);
        }
    }
    if (done == count) return;
    for (int64_t i = 0; i < span; ++i)
        to[i % parts * kLanes + i / parts] = done + i < count ? to_float(from[(done + i) * step]) : 0;
}

// Few rows: dot products with columns of weights, which are read once, in place.
SK_NOINLINE void skinny_weight_int8(const WeightOnlyProblem<Element>& p, const Int8Columns& weights) {
    RowScratch scratch;
    constexpr int64_t span = kSpan<Int8Weight>;
    const int64_t most_depth = least(kRowElements / p.m / span * span, round_up(p.k, span));
    const int64_t most_columns = kRowSums / p.m / (2 * kLanes) * (2 * kLanes);
    const Range granules = block_share(divide_up(p.n, kGranule));
    const int64_t last = least(granules.end * kGranule, p.n);
    for (int64_t begin = granules.begin * kGranule; begin < last; begin += most_columns) {
        Subproblem<Int8Weight> sub;
        sub.rows = p.m;
        sub.columns = least(most_columns, last - begin);
        sub.block_columns = last - begin;
        sub.batches = 1;
        sub.b_bytes = p.n * p.k;
        sub.a = scratch.a;
        sub.sums = scratch.sums;
        sub.lda = most_depth + kLanes;
        sub.ld = round_up(sub.columns, 2 * kLanes);
        sub.ldb = weights.step;
        for (int64_t i = 0; i < sub.rows * sub.ld; i += kLanes) store(scratch.sums + i, Vector{});
        for (int64_t k = 0; k < p.k; k += most_depth) {
            sub.depth = least(most_depth, p.k - k);
            sub.b = weights.first + begin * weights.step + k;
            for (int64_t row = 0; row < p.m; ++row)
                gather_parts(p.x + row * p.x_row + k * p.x_column, p.x_column, sub.depth, scratch.a + row * sub.lda);
            add_dots(sub);
        }
        for (int64_t row = 0; row < p.m; ++row) {
            float* sums = scratch.sums + row * sub.ld;
            for (int64_t i = 0; i < sub.columns; ++i) sums[i] *= kInt8PartScale;
            weights.scale(begin, sub.columns, sums);
            store_row(p, row, begin, sub.columns, sums);
        }
    }
}

// The weights that this block reads first, while other cores still compute the rows.
SK_INLINE void prefetch_columns(const WeightOnlyProblem<Element>& p, const Int8Columns& weights) {
    const Range granules = block_share(divide_up(p.n, kGranule));
    const int64_t columns = least(granules.end * kGranule, p.n) - granules.begin * kGranule;
    const int64_t streams = p.m == 1 && columns >= kStreams ? kStreams : 1, length = columns / streams;
    for (int64_t stream = 0; stream < streams; ++stream)
        prefetch_rows(weights.first + (granules.begin * kGranule + stream * length) * weights.step, weights.step, length,
                      p.k, kEarlyPrefetchBytes / streams);
}

}  // namespace

extern "C" void weight_int8(const Element* x, const Int8Weight* weight, const Element* scales, Element* out, int64_t m,
                            int64_t n, int64_t k, int64_t x_row, int64_t x_column, int64_t weight_row,
                            int64_t scales_step, int64_t out_row, int64_t out_column) {
    const WeightOnlyProblem<Element> p{x, out, m, n, k, x_row, x_column, out_row, out_column};
    const Int8Columns weights{weight, weight_row, scales, scales_step};
    const bool few = m <= kWeightOnlyRows;
    if (few && m > 0) prefetch_columns(p, weights);
    sk::wait_previous();
    if (m == 0 || n == 0) return;
    few && k > 0 ? skinny_weight_int8(p, weights) : tiled_weight_only(p, weights);
}
