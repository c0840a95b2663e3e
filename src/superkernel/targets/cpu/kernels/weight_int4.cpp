// weight_int4.cpp: floating-point rows times int4 weights in groups: aten::_weight_int4pack_mm_for_cpu, and packing them.
//
// Compiled with SK_ELEMENT, the element type of rows, scales and results. Within a group, rows are multiplied by whole
// numbers; scale and zero point are applied to the sums of the group. Blocks divide blocks of columns, never k, so the
// result does not depend on their number.
#include "int4_weights.h"

namespace {

using Element = SK_ELEMENT;

constexpr int64_t kInt4Rows = 4;             // more rows are computed by tiles: a weight is converted once for all of them
constexpr int64_t kInt4RowElements = 65536;  // floats that the scratch memory holds
constexpr int64_t kInt4LeastGroup = 16;
constexpr int kInt4Vectors = 4;  // vectors of columns of a block, in the layout that is vectorised
constexpr int kInt4RowGroup = kRegisters == 32 ? 4 : 2;
constexpr int64_t kInt4PrefetchBytes = 2048;
constexpr int64_t kInt4TranslateBytes = kInt4PrefetchBytes + 4096;  // a page further: its address is translated by then

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

// The sums of the lower and the upper half of a vector, in the lower half.
template <int... I>
SK_INLINE Vector add_halves(Vector x, Indices<I...>) {
    return x + SK_SHUFFLE(x, x, ((I + kLanes / 2) % kLanes)...);
}

// Products of two rows of a block: lanes of the first row in the lower half, of the second in the upper half.
//
// A word has eight nibbles, the columns of four bytes. Five are converted in place, which multiplies them by a power of
// two. Three become the highest bits of a mantissa: 1 + q / 16. Processors convert fewer vectors at a time than they
// combine, so the mixture is a fifth faster than conversions alone.
struct NibbleProducts {
    static constexpr int kNibbles = 8;
    Vector total[kNibbles];

    SK_INLINE static Vector whole(Words nibble) { return __builtin_convertvector(Integers(nibble), Vector); }
    SK_INLINE static Vector mantissa(Words nibble) { return Vector((nibble & 0x780000u) | 0x3f800000u); }

    SK_INLINE void add(const uint8_t* from, Vector factor) {
        const Words words = Words(*reinterpret_cast<const AnyIntegers*>(from));
        total[0] = multiply_add(whole(words & 0xfu), factor, total[0]);
        total[1] = multiply_add(whole(words & 0xf0u), factor, total[1]);
        total[2] = multiply_add(whole(words & 0xf00u), factor, total[2]);
        total[3] = multiply_add(mantissa(words << 7), factor, total[3]);
        total[4] = multiply_add(whole(words & 0xf0000u), factor, total[4]);
        total[5] = multiply_add(mantissa(words >> 1), factor, total[5]);
        total[6] = multiply_add(mantissa(words >> 5), factor, total[6]);
        total[7] = multiply_add(whole(words >> 28), factor, total[7]);
    }

    // Of the low (half 0) or high columns of the bytes of a row; `group_sum` is the sum of all factors.
    SK_INLINE void columns(int half, float group_sum, Vector (&to)[2]) const {
        constexpr float units[] = {1, 1.0f / 16, 1.0f / 256, 16, 1.0f / 65536, 16, 16, 1};
        Vector parts[4];
        SK_UNROLL
        for (int byte = 0; byte < 4; ++byte) {
            const int nibble = 2 * byte + half;
            parts[byte] = add_halves(total[nibble], CountTo<kLanes>::type{}) * broadcast(units[nibble]);
            if (units[nibble] == 16) parts[byte] = parts[byte] - broadcast(16 * group_sum);
        }
        const Vector even = interleave_low(parts[0], parts[2]), odd = interleave_low(parts[1], parts[3]);
        to[0] = interleave_low(even, odd);
        to[1] = interleave_high(even, odd);
    }
};

// One row times a full block in halves, two rows of the block at a time; each element of x is repeated kLanes / 2 times.
SK_NOINLINE void int4_row(const Int4Weights<Element>& w, const float* x, const float* group_sums, int64_t block,
                          float* sums) {
    const uint8_t* from = w.packed + w.layout.at(block, 0);
    for (int64_t i = 0; i < w.layout.block; i += kLanes) store(sums + i, Vector{});
    for (int64_t g = 0; g < w.layout.depth / w.group; ++g) {
        NibbleProducts products = {};
        __builtin_prefetch(from + kInt4TranslateBytes, 0, 3);
        for (const float* end = x + w.group * kLanes / 2; x < end; x += kLanes, from += kVectorBytes) {
            Vector factor = load(x);
            pin_register(factor);
            products.add(from, factor);
            __builtin_prefetch(from + kInt4PrefetchBytes, 0, 3);
        }
        const Element* pairs = w.scales_of(g, block * w.layout.block);
        SK_UNROLL
        for (int half = 0; half < 2; ++half) {
            Vector columns[2];
            products.columns(half, group_sums[g], columns);
            SK_UNROLL
            for (int v = 0; v < 2; ++v)
                add_group(pairs + 2 * (2 * half + v) * kLanes, columns[v], group_sums[g], sums + (2 * half + v) * kLanes);
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

template <int R>
SK_INLINE void store_rows(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w, const Int4Rows& rows,
                          int64_t row, int64_t block) {
    alignas(64) float sums[R][kMostBlockColumns];
    int4_rows<R>(w, rows.x + row * p.k, rows.group_sums + row * (p.k / w.group), block, sums);
    for (int r = 0; r < R; ++r) store_row(p, row + r, block * w.layout.block, w.layout.block, sums[r]);
}

// All rows times one block.
SK_NOINLINE void rows_times_block(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w, const Int4Rows& rows,
                                  int64_t block, bool vectorised) {
    int64_t row = 0;
    if (vectorised && w.layout.in_halves(block)) {
        for (; row + kInt4RowGroup <= p.m; row += kInt4RowGroup) store_rows<kInt4RowGroup>(p, w, rows, row, block);
        for (; row + 2 <= p.m; row += 2) store_rows<2>(p, w, rows, row, block);
        for (; row < p.m; ++row) store_rows<1>(p, w, rows, row, block);
    }
    for (; row < p.m; ++row) {
        float sums[kMostBlockColumns];
        int4_block(w, rows.x + row * p.k, rows.group_sums + row * (p.k / w.group), block, sums);
        store_row(p, row, block * w.layout.block, w.layout.size(block), sums);
    }
}

// Few rows: every weight is read once, in place.
SK_NOINLINE void skinny_weight_int4(const WeightOnlyProblem<Element>& p, const Int4Weights<Element>& w) {
    Int4Rows rows;
    gather_rows<1>(p.x, p.x_row, p.x_column, p.m, p.k, rows.x, p.k);
    for (int64_t i = 0; i < p.m * (p.k / w.group); ++i) rows.group_sums[i] = sum_of(rows.x + i * w.group, w.group);
    const Range share = block_share(w.layout.blocks());
    const bool vectorised = w.layout.halves && w.layout.block == kInt4Vectors * kLanes;
    int64_t full = share.begin;  // blocks before it are in halves
    if (vectorised && p.m == 1 && w.group % 2 == 0 && p.k * kLanes / 2 <= kInt4RowElements) {
        while (full < share.end && w.layout.in_halves(full)) ++full;
        alignas(64) float repeated[kInt4RowElements];
        for (int64_t i = 0; i < p.k; ++i)
            for (int lane = 0; lane < kLanes / 2; ++lane) repeated[i * kLanes / 2 + lane] = rows.x[i];
        for (int64_t block = share.begin; block < full; ++block) {
            alignas(64) float sums[kMostBlockColumns];
            int4_row(w, repeated, rows.group_sums, block, sums);
            store_row(p, 0, block * w.layout.block, w.layout.block, sums);
        }
    }
    for (int64_t block = full; block < share.end; ++block) rows_times_block(p, w, rows, block, vectorised);
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
