// int8_skinny.h: int8 skinny matmul (few rows of a), bound by the bandwidth of b: every column is read once, in place.
//
// For b that is contiguous along k. Here a is the unsigned operand of VNNI: 128 is added to it, and 128 times the sum
// of a column of b is subtracted.
#pragma once

#include "int8.h"

namespace {

constexpr int64_t kInt8SkinnyRows = 16;
constexpr int64_t kDotDepth = 2048;  // elements of k at a time: four rows and four columns fit an L1 cache
constexpr int64_t kDotWords = kDotDepth / kPerWord;
constexpr int64_t kDotStep = kDotWords + kLanes;  // padded, so that rows do not map to the same cache sets
constexpr int kDotColumns = 4;
constexpr int kDotRows = kRegisters == 32 ? 4 : 2;
constexpr int64_t kDotGranule = 16;  // columns that blocks do not divide

struct DotScratch {
    alignas(64) int32_t a[kInt8SkinnyRows * kDotStep];
    alignas(64) int32_t sums[kInt8SkinnyRows * kInt8MostColumns];
};

typedef uint32_t Four __attribute__((vector_size(16)));

// The sums over all lanes of four vectors; what is too large wraps around.
SK_INLINE Four sums_of_lanes(const Sums (&of)[kDotColumns]) {
    static_assert(kDotColumns == 4, "one lane of the result for each");
    typedef CountTo<kLanes>::type All;
    const Words low = add_pairs(Words(of[0]), Words(of[1]), All{}), high = add_pairs(Words(of[2]), Words(of[3]), All{});
    union {
        Words whole;
        Four group[kLanes / 4];
    } sums = {add_pairs(low, high, All{})};
    for (int i = 1; i < kLanes / 4; ++i) sums.group[0] += sums.group[i];
    return sums.group[0];
}

// The words of `count` elements, fewer than a vector has, then words of zeros; memory behind them is not read.
template <bool Unsigned>
SK_INLINE Sums partial_int8_words(const int8_t* from, int64_t count) {
#if SK_VNNI && defined(__AVX512BW__) && !defined(__clang__) && SK_HAS(__builtin_ia32_loaddquqi512_mask)
    typedef char Bytes __attribute__((vector_size(kVectorBytes)));
    const uint64_t first = (uint64_t(1) << count) - 1;
    const Sums words = Sums(__builtin_ia32_loaddquqi512_mask(reinterpret_cast<const char*>(from), Bytes{}, first));
    return Unsigned ? words ^ int32_t(0x80808080) : words;
#else
    int8_t some[kLanes * kPerWord] = {};
    for (int64_t i = 0; i < count; ++i) some[i] = from[i];
    return int8_words<Unsigned>(some);
#endif
}

// sums += Rows rows of a times columns of b, `column_step` apart. `count` <= kDotColumns of them are wanted.
template <int Rows>
SK_NOINLINE void int8_dots(const int32_t* a, const int8_t* b, int64_t column_step, int64_t depth, int64_t count,
                        int32_t* sums, bool first) {
    constexpr int64_t span = kLanes * kPerWord;
    const int8_t* columns[kDotColumns];
    SK_UNROLL
    for (int c = 0; c < kDotColumns; ++c) columns[c] = b + least(c, count - 1) * column_step;
    const int64_t ahead = kDotColumns * column_step;
    Sums total[Rows][kDotColumns] = {}, of_column[kDotColumns] = {};
    for (int64_t i = 0; i < depth; i += span) {
        Sums weights[kDotColumns];
        if (__builtin_expect(depth - i < span, false)) {
            SK_UNROLL
            for (int c = 0; c < kDotColumns; ++c) weights[c] = partial_int8_words<false>(columns[c] + i, depth - i);
        } else {
            SK_UNROLL
            for (int c = 0; c < kDotColumns; ++c) {
                weights[c] = int8_words<false>(columns[c] + i);
                if (first) __builtin_prefetch(columns[c] + i + ahead, 0, 2);  // the next columns, for all rows
            }
        }
        SK_UNROLL
        for (int c = 0; c < kDotColumns; ++c) {
            pin_register(weights[c]);
            if (SK_VNNI) add_products(of_column[c], 0x01010101 - Sums{}, weights[c]);
        }
        SK_UNROLL
        for (int r = 0; r < Rows; ++r) {
            Sums row = load_sums(a + r * kDotStep + i / kPerWord);
            pin_register(row);
            SK_UNROLL
            for (int c = 0; c < kDotColumns; ++c) add_products(total[r][c], row, weights[c]);
        }
    }
    const Four offset = SK_VNNI ? sums_of_lanes(of_column) * 128 : Four{};
    for (int r = 0; r < Rows; ++r) {
        const Four added = sums_of_lanes(total[r]) - offset;
        int32_t* to = sums + r * kInt8MostColumns;
        for (int64_t c = 0; c < count; ++c) to[c] = int32_t(uint32_t(to[c]) + added[c]);
    }
}

// Rows of a as words of the unsigned operand; the last vector is filled up with what meets zeros of b.
SK_NOINLINE void pack_int8_dots(const int8_t* a, int64_t row, int64_t column, int64_t rows, int64_t depth, int32_t* to) {
    for (int64_t r = 0; r < rows; ++r, a += row, to += kDotStep) {
        int64_t word = 0;
        if (column == 1) {
            for (; (word + kLanes) * kPerWord <= depth; word += kLanes)
                store_sums(to + word, int8_words<true>(a + word * kPerWord));
            if (word * kPerWord < depth)
                store_sums(to + word, partial_int8_words<true>(a + word * kPerWord, depth - word * kPerWord));
            continue;
        }
        for (; word * kPerWord < depth; ++word)
            to[word] = int8_word<true>(a + word * kPerWord * column, column, least(kPerWord, depth - word * kPerWord));
        for (; word % kLanes != 0; ++word) to[word] = 0;
    }
}

// One tile of all rows: its sums, row by row, to finish(row, sums).
template <class Finish>
SK_INLINE void int8_skinny_sums(const Int8Problem& p, const Tile& tile, DotScratch& scratch, Finish& finish) {
    for (int64_t i = 0; i < p.m * kInt8MostColumns; ++i) scratch.sums[i] = 0;
    for (int64_t k = 0; k < p.k; k += kDotDepth) {
        const int64_t depth = least(kDotDepth, p.k - k);
        pack_int8_dots(p.a + p.of_a.at(tile.batch, 0, k), p.of_a.row, p.of_a.column, p.m, depth, scratch.a);
        for (int64_t j = 0; j < tile.columns; j += kDotColumns) {
            const int8_t* b = p.b + p.of_b.at(tile.batch, k, tile.column + j);
            const int64_t count = least(kDotColumns, tile.columns - j), step = p.of_b.column;
            int32_t* sums = scratch.sums + j;
            int64_t r = 0;
            for (; r + kDotRows <= p.m; r += kDotRows, sums += kDotRows * kInt8MostColumns)
                int8_dots<kDotRows>(scratch.a + r * kDotStep, b, step, depth, count, sums, r == 0);
            const int32_t* a = scratch.a + r * kDotStep;
            if (p.m - r == 1) int8_dots<1>(a, b, step, depth, count, sums, r == 0);
            if (p.m - r == 2) int8_dots<2>(a, b, step, depth, count, sums, r == 0);
            if (p.m - r == 3) int8_dots<3>(a, b, step, depth, count, sums, r == 0);
        }
    }
    finish.columns(tile);
    for (int64_t r = 0; r < p.m; ++r) finish.row(tile, r, scratch.sums + r * kInt8MostColumns);
}

// This block's share: columns, and batches of columns.
template <class Finish>
SK_NOINLINE void int8_skinny_matmul(const Int8Problem& p, Finish& finish) {
    DotScratch scratch;
    const int64_t granules = divide_up(p.n, kDotGranule);
    const Range units = block_share(p.batches * granules);
    for (int64_t unit = units.begin; unit < units.end;) {
        const int64_t batch = unit / granules, first = unit % granules;
        const int64_t count = least(least(granules - first, units.end - unit), kInt8MostColumns / kDotGranule);
        const int64_t column = first * kDotGranule;
        const Tile tile{batch, 0, column, p.m, least(count * kDotGranule, p.n - column)};
        int8_skinny_sums(p, tile, scratch, finish);
        unit += count;
    }
}

// Chooses the algorithm by the shape.
template <class Finish>
SK_INLINE void int8_products(const Int8Problem& p, Finish& finish) {
    if (p.m <= kInt8SkinnyRows && p.of_b.row == 1 && p.k > 0) return int8_skinny_matmul(p, finish);
    int8_product(p, finish);
}

}  // namespace
