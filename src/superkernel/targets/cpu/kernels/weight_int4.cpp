// weight_int4.cpp: floating-point rows times int4 weights in groups: aten::_weight_int4pack_mm_for_cpu, and packing them.
//
// Compiled with SK_ELEMENT, the element type of rows, scales and results. Within a group, rows are multiplied by whole
// numbers; scale and zero point are applied to the sums of the group. Blocks divide blocks of columns, never k, so the
// result does not depend on their number.
#include "int4_weights.h"

namespace {

using Element = SK_ELEMENT;

constexpr int64_t kInt4Rows = 4;               // more rows are computed by tiles: a weight is converted once for all of them
constexpr int64_t kInt4RowElements = 65536;    // elements of x that the scratch memory holds as floats
constexpr int64_t kInt4LeastGroup = 16;
constexpr int kInt4Chunks = 2;                 // vectors of bytes in a row of a block
constexpr int kInt4Streams = kRegisters == 32 ? 4 : 2;  // blocks that are read side by side
constexpr int kInt4RowGroup = kRegisters == 32 ? 4 : 2;
constexpr int64_t kInt4PrefetchBytes = 1024;

// Rows of x as floats, and their sums over each group.
struct Int4Rows {
    alignas(64) float x[kInt4RowElements + kLanes];
    float group_sums[kInt4RowElements / kInt4LeastGroup];
};

SK_INLINE float sum_of(const float* x, int64_t count) {
    Vector lanes = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) lanes = lanes + load(x + i);
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
    for (; i < count; ++i) sum += x[i];
    return sum;
}

// R rows times S full blocks in halves; sums[(s * R + r)] has the columns of a block.
template <int S, int R>
SK_NOINLINE void int4_blocks(const Int4Weights<Element>& w, const float* x, const float* group_sums,
                             const int64_t (&blocks)[S], float (*sums)[kMostBlockColumns]) {
    constexpr int vectors = 2 * kInt4Chunks;
    const int64_t depth = w.layout.depth, groups = depth / w.group;
    const uint8_t* from[S];
    for (int s = 0; s < S; ++s) {
        from[s] = w.packed + w.layout.at(blocks[s], 0);
        for (int i = 0; i < R * vectors; ++i) store(sums[s * R + i / vectors] + i % vectors * kLanes, Vector{});
    }
    for (int64_t g = 0; g < groups; ++g) {
        Vector total[S][R][vectors] = {};
        const float* end = x + w.group;
        for (; x < end; ++x) {
            Vector factor[R];
            SK_UNROLL
            for (int r = 0; r < R; ++r) {
                factor[r] = broadcast(x[r * depth]);
                pin_register(factor[r]);
            }
            SK_UNROLL
            for (int s = 0; s < S; ++s) {
                SK_UNROLL
                for (int chunk = 0; chunk < kInt4Chunks; ++chunk) {
                    const Integers both = widen_bytes(from[s] + chunk * kLanes);
                    Vector low = __builtin_convertvector(both & 15, Vector), high = __builtin_convertvector(both >> 4, Vector);
                    if (R > 1) pin_register(low), pin_register(high);
                    SK_UNROLL
                    for (int r = 0; r < R; ++r) {
                        total[s][r][chunk] = multiply_add(low, factor[r], total[s][r][chunk]);
                        total[s][r][kInt4Chunks + chunk] = multiply_add(high, factor[r], total[s][r][kInt4Chunks + chunk]);
                    }
                }
                __builtin_prefetch(from[s] + kInt4PrefetchBytes, 0, 2);
                from[s] += kInt4Chunks * kLanes;
            }
        }
        SK_UNROLL
        for (int s = 0; s < S; ++s) {
            const Element* pairs = w.scales_of(g, blocks[s] * w.layout.block);
            SK_UNROLL
            for (int v = 0; v < vectors; ++v) {
                Vector scale, zero;
                load_scales(pairs + 2 * v * kLanes, scale, zero);
                const Vector offset = multiply_add(broadcast(-8), scale, zero);
                SK_UNROLL
                for (int r = 0; r < R; ++r) {
                    float* at = sums[s * R + r] + v * kLanes;
                    const Vector sum = multiply_add(scale, total[s][r][v], load(at));
                    store(at, multiply_add(offset, broadcast(group_sums[r * groups + g]), sum));
                }
            }
        }
    }
}

// One row times a block of any layout and size.
SK_NOINLINE void int4_block(const Int4Weights<Element>& w, const float* x, const float* group_sums, int64_t block,
                            float* sums) {
    const int64_t bytes = w.layout.size(block) / 2;
    const uint8_t* from = w.packed + w.layout.at(block, 0);
    float scale[2][kMostBlockColumns / 2], zero[2][kMostBlockColumns / 2];
    for (int64_t i = 0; i < 2 * bytes; ++i) sums[i] = 0;
    for (int64_t g = 0; g < w.layout.depth / w.group; ++g) {
        float low[kMostBlockColumns / 2] = {}, high[kMostBlockColumns / 2] = {};
        for (int64_t i = 0; i < w.group; ++i, ++x, from += bytes) {
            for (int64_t byte = 0; byte < bytes; ++byte) {
                low[byte] = multiply_add(float(from[byte] & 15), *x, low[byte]);
                high[byte] = multiply_add(float(from[byte] >> 4), *x, high[byte]);
            }
        }
        w.read_scales(block, g, scale, zero);
        for (int64_t byte = 0; byte < bytes; ++byte) {
            float &left = sums[w.layout.low_column(block, byte)], &right = sums[w.layout.high_column(block, byte)];
            left = multiply_add(scale[0][byte], low[byte], left);
            left = multiply_add(multiply_add(-8, scale[0][byte], zero[0][byte]), group_sums[g], left);
            right = multiply_add(scale[1][byte], high[byte], right);
            right = multiply_add(multiply_add(-8, scale[1][byte], zero[1][byte]), group_sums[g], right);
        }
    }
}

template <int S, int R>
SK_INLINE void store_blocks(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w, const Int4Rows& rows,
                            int64_t row, const int64_t (&blocks)[S]) {
    alignas(64) float sums[S * R][kMostBlockColumns];
    const int64_t groups = p.k / w.group;
    int4_blocks<S, R>(w, rows.x + row * p.k, rows.group_sums + row * groups, blocks, sums);
    for (int s = 0; s < S; ++s)
        for (int r = 0; r < R; ++r) store_row(p, row + r, blocks[s] * w.layout.block, w.layout.block, sums[s * R + r]);
}

// All rows times one block.
SK_NOINLINE void rows_times_block(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w, const Int4Rows& rows,
                                  int64_t block, bool vectorised) {
    int64_t row = 0;
    if (vectorised && w.layout.in_halves(block)) {
        for (; row + kInt4RowGroup <= p.m; row += kInt4RowGroup) store_blocks<1, kInt4RowGroup>(p, w, rows, row, {block});
        for (; row + 2 <= p.m; row += 2) store_blocks<1, 2>(p, w, rows, row, {block});
        for (; row < p.m; ++row) store_blocks<1, 1>(p, w, rows, row, {block});
    }
    for (; row < p.m; ++row) {
        float sums[kMostBlockColumns];
        int4_block(w, rows.x + row * p.k, rows.group_sums + row * (p.k / w.group), block, sums);
        store_row(p, row, block * w.layout.block, w.layout.size(block), sums);
    }
}

// Few rows: every weight is read once, in place, by blocks from several streams.
SK_NOINLINE void skinny_weight_int4(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w) {
    Int4Rows rows;
    gather_rows<1>(p.x, p.x_row, p.x_column, p.m, p.k, rows.x, p.k);
    for (int64_t i = 0; i < p.m * (p.k / w.group); ++i) rows.group_sums[i] = sum_of(rows.x + i * w.group, w.group);
    const Range share = block_share(w.layout.blocks());
    const bool vectorised = w.layout.halves && w.layout.block == 2 * kInt4Chunks * kLanes;
    int64_t full = share.end;
    while (full > share.begin && !w.layout.in_halves(full - 1)) --full;
    const int64_t length = vectorised && p.m == 1 ? (full - share.begin) / kInt4Streams : 0;
    for (int64_t i = 0; i < length; ++i) {
        int64_t blocks[kInt4Streams];
        for (int s = 0; s < kInt4Streams; ++s) blocks[s] = share.begin + s * length + i;
        store_blocks<kInt4Streams, 1>(p, w, rows, 0, blocks);
    }
    for (int64_t block = share.begin + kInt4Streams * length; block < share.end; ++block)
        rows_times_block(p, w, rows, block, vectorised);
}

}  // namespace

// `block` and `halves` say how torch packed the weights.
extern "C" void weight_int4(const Element* x, const uint8_t* weight, const Element* scales, Element* out, int64_t m,
                            int64_t n, int64_t k, int64_t group, int64_t block, int64_t halves, int64_t x_row,
                            int64_t x_column, int64_t out_row, int64_t out_column) {
    const WeightOnlyProblem<Element> p{x, out, m, n, k, x_row, x_column, out_row, out_column};
    const Int4Weights<Element> w{weight, scales, group, {n, k, block, halves != 0}};
    const bool few = m <= kInt4Rows && m * k <= kInt4RowElements && group >= kInt4LeastGroup;
    if (few && m > 0) {
        const Range share = block_share(w.layout.blocks());
        if (share.begin < share.end) prefetch(weight + w.layout.at(share.begin, 0), least(16384, block / 2 * k));
    }
    sk::wait_previous();
    if (m == 0 || n == 0) return;
    few ? skinny_weight_int4(p, w) : tiled_weight_only(p, w);
}

// Whole numbers of 4 bits, n rows of k, to packed weights.
extern "C" void pack_int4(const int32_t* weight, uint8_t* out, int64_t n, int64_t k, int64_t block, int64_t halves,
                          int64_t weight_row, int64_t weight_column) {
    sk::wait_previous();
    const Int4Layout layout{n, k, block, halves != 0};
    const Range share = block_share(layout.blocks());
    for (int64_t index = share.begin; index < share.end; ++index) {
        const int32_t* from = weight + index * block * weight_row;
        for (int64_t row = 0; row < k; ++row) {
            uint8_t* to = out + layout.at(index, row);
            for (int64_t byte = 0; byte < layout.size(index) / 2; ++byte) {
                const int32_t low = from[layout.low_column(index, byte) * weight_row + row * weight_column];
                const int32_t high = from[layout.high_column(index, byte) * weight_row + row * weight_column];
                to[byte] = uint8_t(uint32_t(high) << 4 | uint8_t(low));
            }
        }
    }
}
