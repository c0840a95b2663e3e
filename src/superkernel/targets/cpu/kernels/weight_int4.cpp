// weight_int4.cpp: floating-point rows times int4 weights in groups: aten::_weight_int4pack_mm_for_cpu, and packing them.
//
// Compiled with SK_ELEMENT, the element type of rows, scales and results. Within a group, rows are multiplied by whole
// numbers, as integers (int4_digits.h) or as floats; scale and zero point are applied to the sums of the group. Blocks
// divide blocks of columns, never k, so the result does not depend on their number.
#include "int4_digits.h"

namespace {

using Element = SK_ELEMENT;

constexpr int64_t kInt4Rows = 16;            // more rows are computed by tiles: a weight is converted once for all of them
constexpr int64_t kInt4PlainRows = 4;        // the same for layouts whose weights are read one by one
constexpr int64_t kInt4RowElements = 65536;  // floats that the scratch memory holds
constexpr int64_t kInt4LeastGroup = 16;
constexpr int kInt4Vectors = 4;  // vectors of columns of a block, in the layout that is vectorised
constexpr int kInt4RowGroup = kRegisters == 32 ? 4 : 2;
constexpr int64_t kInt4PrefetchBytes = 2048;
constexpr int64_t kInt4TranslateBytes = kInt4PrefetchBytes + 4096;  // a page further: its address is translated by then
constexpr int64_t kDigitPanel = 4;     // blocks that a row is multiplied by before the next row
constexpr int64_t kDigitDepth = 4096;  // rows of weights that a row is multiplied by before the next block

// Rows of x as floats, and their sums over each group.
struct Int4Rows {
    alignas(64) float x[kInt4RowElements + kLanes];
    float group_sums[kInt4RowElements / kInt4LeastGroup];
};

SK_INLINE bool in_vectors(const Int4Layout& layout) { return layout.halves && layout.block == kInt4Vectors * kLanes; }

SK_INLINE float sum_of(const float* x, int64_t count) {
    Vector lanes = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) lanes = lanes + load(x + i);
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
    for (; i < count; ++i) sum += x[i];
    return sum;
}

// sums += scale * product + (zero - 8 * scale) * group_sum, for kLanes columns
SK_INLINE void add_group(const Element* pairs, Vector product, float group_sum, float* sums) {
    Vector scale, zero;
    load_scales(pairs, scale, zero);
    const Vector offset = multiply_add(broadcast(-8), scale, zero);
    store(sums, multiply_add(offset, broadcast(group_sum), multiply_add(scale, product, load(sums))));
}

// R rows times a full block in halves.
template <int R>
SK_NOINLINE void int4_rows(const Int4Weights<Element>& w, const float* x, const float* group_sums, int64_t block,
                           float (*sums)[kMostBlockColumns]) {
    const int64_t depth = w.layout.depth, groups = depth / w.group;
    const uint8_t* from = w.packed + w.layout.at(block, 0);
    for (int i = 0; i < R * kInt4Vectors; ++i) store(sums[i / kInt4Vectors] + i % kInt4Vectors * kLanes, Vector{});
    for (int64_t g = 0; g < groups; ++g) {
        Vector total[R][kInt4Vectors] = {};
        __builtin_prefetch(from + kInt4TranslateBytes, 0, 3);
        for (const float* end = x + w.group; x < end; ++x, from += 2 * kLanes) {
            Vector factor[R];
            SK_UNROLL
            for (int r = 0; r < R; ++r) {
                factor[r] = broadcast(x[r * depth]);
                pin_register(factor[r]);
            }
            SK_UNROLL
            for (int chunk = 0; chunk < 2; ++chunk) {
                const Integers both = widen_bytes(from + chunk * kLanes);
                Vector low = __builtin_convertvector(both & 15, Vector), high = __builtin_convertvector(both >> 4, Vector);
                if (R > 1) pin_register(low), pin_register(high);
                SK_UNROLL
                for (int r = 0; r < R; ++r) {
                    total[r][chunk] = multiply_add(low, factor[r], total[r][chunk]);
                    total[r][2 + chunk] = multiply_add(high, factor[r], total[r][2 + chunk]);
                }
            }
            __builtin_prefetch(from + kInt4PrefetchBytes, 0, 3);
        }
        const Element* pairs = w.scales_of(g, block * w.layout.block);
        SK_UNROLL
        for (int v = 0; v < kInt4Vectors; ++v)
            for (int r = 0; r < R; ++r)
                add_group(pairs + 2 * v * kLanes, total[r][v], group_sums[r * groups + g], sums[r] + v * kLanes);
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

template <int R>
SK_INLINE void store_rows(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w, const Int4Rows& rows,
                          int64_t row, int64_t block) {
    alignas(64) float sums[R][kMostBlockColumns];
    int4_rows<R>(w, rows.x + row * p.k, rows.group_sums + row * (p.k / w.group), block, sums);
    for (int r = 0; r < R; ++r) store_row(p, row + r, block * w.layout.block, w.layout.block, sums[r]);
}

// Rows begin .. end times one block, by floats.
SK_NOINLINE void rows_times_block(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w, const Int4Rows& rows,
                                  int64_t begin, int64_t end, int64_t block) {
    int64_t row = begin;
    if (in_vectors(w.layout) && w.layout.in_halves(block)) {
        for (; row + kInt4RowGroup <= end; row += kInt4RowGroup) store_rows<kInt4RowGroup>(p, w, rows, row, block);
        for (; row + 2 <= end; row += 2) store_rows<2>(p, w, rows, row, block);
        for (; row < end; ++row) store_rows<1>(p, w, rows, row, block);
    }
    for (; row < end; ++row) {
        float sums[kMostBlockColumns];
        int4_block(w, rows.x + row * p.k, rows.group_sums + row * (p.k / w.group), block, sums);
        store_row(p, row, block * w.layout.block, w.layout.size(block), sums);
    }
}

// Whether rows are multiplied as digits. Few registers hold one row, and floats of two rows at a time are faster.
SK_INLINE bool by_digits(const Int4Weights<Element>& w, int64_t m) {
    if (!SK_INT4_DIGITS || !w.layout.halves || (w.layout.block != 32 && w.layout.block != 64)) return false;
    if (w.group % kDigitLeastGroup != 0 || w.group > kDigitMostGroup) return false;
    return m == 1 || kRegisters == 32 || !in_vectors(w.layout);
}

#if SK_INT4_DIGITS
// Rows as digits; rows that are not regular are left to floats.
struct Int4DigitRows {
    DigitWords words[kInt4RowElements / 4];
    DigitGroup groups[kInt4RowElements / kDigitLeastGroup];
    bool regular[kInt4Rows];
};

template <int R>
SK_NOINLINE void split_rows(const WeightOnlyProblem<Element>& p, int64_t group, const Int4Rows& rows, Int4DigitRows& to) {
    for (int64_t row = 0; row < p.m; ++row) {
        to.regular[row] = true;
        for (int64_t i = row * p.k; i < (row + 1) * p.k && to.regular[row]; i += group)
            to.regular[row] = split_group<R>(rows.x + i, group, to.words + i / 4, to.groups[i / group]);
    }
}

// Regular rows times the blocks begin .. end, full ones in halves.
template <int RowBytes>
SK_NOINLINE void multiply_digits(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w, const Int4Rows& floats,
                                 int64_t begin, int64_t end, Int4DigitRows& rows) {
    using Products = DigitProducts<RowBytes>;
    split_rows<Products::kRows>(p, w.group, floats, rows);
    constexpr int64_t columns = 2 * RowBytes;
    const int64_t chunk = kDigitDepth / w.group * w.group;
    typename Products::Pattern patterns[kDigitDepth / 4 / Products::kRows];
    alignas(64) float sums[kInt4Rows][kDigitPanel][columns];
    int64_t repeated = -1;  // the number that the patterns begin with
    for (int64_t first = begin; first < end; first += kDigitPanel) {
        const int64_t last = least(first + kDigitPanel, end);
        for (int64_t row = 0; row < p.m; ++row)
            for (int64_t i = 0; i < kDigitPanel * columns; ++i) sums[row][i / columns][i % columns] = 0;
        for (int64_t k = 0; k < p.k; k += chunk) {
            const int64_t depth = least(chunk, p.k - k);
            for (int64_t row = 0; row < p.m; ++row) {
                if (!rows.regular[row]) continue;
                if (repeated != row * p.k + k) {
                    repeated = row * p.k + k;
                    Products::repeat(rows.words + repeated / 4, depth, patterns);
                }
                const DigitGroup* groups = rows.groups + repeated / w.group;
                for (int64_t block = first; block < last; ++block) {
                    for (int64_t i = 0; i < depth; i += w.group) {
                        const Element* scales = w.scales_of((k + i) / w.group, block * columns);
                        if (block + 1 < end) prefetch(scales + 2 * columns, 2 * columns);
                        Products::add_group(w.packed + w.layout.at(block, k + i), w.group / 4,
                                            patterns + i / 4 / Products::kRows, groups[i / w.group], scales,
                                            sums[row][block - first]);
                    }
                }
            }
        }
        for (int64_t row = 0; row < p.m; ++row)
            for (int64_t block = first; block < last && rows.regular[row]; ++block)
                store_row(p, row, block * columns, columns, sums[row][block - first]);
    }
}

// All rows times the full blocks among these; returns the end of those.
SK_NOINLINE int64_t multiply_full_blocks(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w,
                                         const Int4Rows& floats, Range blocks) {
    Int4DigitRows rows;
    int64_t end = blocks.end;
    while (end > blocks.begin && !w.layout.in_halves(end - 1)) --end;
    w.layout.block == 32 ? multiply_digits<16>(p, w, floats, blocks.begin, end, rows)
                         : multiply_digits<32>(p, w, floats, blocks.begin, end, rows);
    for (int64_t row = 0; row < p.m; ++row)
        for (int64_t block = blocks.begin; block < end && !rows.regular[row]; ++block)
            rows_times_block(p, w, floats, row, row + 1, block);
    return end;
}
#else
SK_INLINE int64_t multiply_full_blocks(const WeightOnlyProblem<Element>&, const Int4Weights<Element>&, const Int4Rows&,
                                       Range blocks) {
    return blocks.begin;
}
#endif

// Few rows: every weight is read once, in place.
SK_NOINLINE void skinny_weight_int4(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w, Range share) {
    Int4Rows rows;
    gather_rows<1>(p.x, p.x_row, p.x_column, p.m, p.k, rows.x, p.k);
    for (int64_t i = 0; i < p.m * (p.k / w.group); ++i) rows.group_sums[i] = sum_of(rows.x + i * w.group, w.group);
    int64_t block = share.begin;
    if (by_digits(w, p.m)) block = multiply_full_blocks(p, w, rows, share);
    for (; block < share.end; ++block) rows_times_block(p, w, rows, 0, p.m, block);
}

}  // namespace

// `block` and `halves` say how torch packed the weights.
extern "C" void weight_int4(const Element* x, const uint8_t* weight, const Element* scales, Element* out, int64_t m,
                            int64_t n, int64_t k, int64_t group, int64_t block, int64_t halves, int64_t x_row,
                            int64_t x_column, int64_t out_row, int64_t out_column) {
    const WeightOnlyProblem<Element> p{x, out, m, n, k, x_row, x_column, out_row, out_column};
    const Int4Weights<Element> w{weight, scales, group, {n, k, block, halves != 0}};
    const int64_t most = by_digits(w, m) || in_vectors(w.layout) ? kInt4Rows : kInt4PlainRows;
    const bool few = m <= most && m * k <= kInt4RowElements && group >= kInt4LeastGroup;
    const Range share = block_share(w.layout.blocks());
    if (few && m > 0 && share.begin < share.end) {
        prefetch(weight + w.layout.at(share.begin, 0), least(16384, block / 2 * k));
        for (int64_t g = 0; g < k / group; ++g)
            prefetch(w.scales_of(g, share.begin * block), 2 * w.layout.size(share.begin));
    }
    sk::wait_previous();
    if (m == 0 || n == 0) return;
    few ? skinny_weight_int4(p, w, share) : tiled_weight_only(p, w);
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
