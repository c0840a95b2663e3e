// int8.h: exact int8 matmul: register tiles of int32 sums over packed panels of words.
//
// A word has the elements of k that one instruction multiplies and adds up: four bytes where there is VNNI, two 16-bit
// numbers elsewhere. VNNI multiplies unsigned by signed bytes: there b is packed with 128 added, and 128 times the sum
// of a row of a is subtracted at the end. Intermediate sums may wrap, the result does not.
#pragma once

#include "tiles.h"

namespace {

typedef int32_t Sums __attribute__((vector_size(kVectorBytes)));
typedef int32_t AnySums __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
#define SK_VNNI 1
constexpr int kPerWord = 4;
#else
#define SK_VNNI 0
constexpr int kPerWord = 2;
#endif

// sum += the products of the elements of a word of b and one of a
SK_INLINE void add_products(Sums& sum, Sums b, Sums a) {
#if defined(__AVX512VNNI__)
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a));
#elif SK_VNNI
    asm("{vex} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(b), "x"(a));
#elif defined(__AVX512BW__)
    Sums product;
    asm("vpmaddwd %2, %1, %0" : "=v"(product) : "v"(b), "v"(a));
    sum += product;
#elif defined(__AVX2__)
    Sums product;
    asm("vpmaddwd %2, %1, %0" : "=x"(product) : "x"(b), "x"(a));
    sum += product;
#else
    sum += (b << 16 >> 16) * (a << 16 >> 16) + (b >> 16) * (a >> 16);
#endif
}

constexpr int kInt8Rows = 6;  // rows and vectors of a register tile
constexpr int kInt8Vectors = kRegisters == 32 ? 4 : 2;
constexpr int64_t kInt8Columns = kInt8Vectors * kLanes;
constexpr int64_t kInt8MostRows = 32 * kInt8Rows;
constexpr int64_t kInt8MostColumns = 128;
constexpr int64_t kChunkWords = 64;

struct Int8Scratch {
    alignas(64) int32_t a[kInt8MostRows * kChunkWords];     // rows, kChunkWords apart
    alignas(64) int32_t b[kInt8MostColumns * kChunkWords];  // panels of kInt8Columns columns; in each, word after word
    alignas(64) int32_t sums[kInt8MostRows * kInt8MostColumns];
    alignas(64) int32_t offsets[kInt8MostRows];
};

struct Int8Problem {
    const int8_t *a, *b;
    int64_t batches, m, n, k;
    Strides of_a, of_b;
};

SK_INLINE Sums load_sums(const int32_t* at) { return *reinterpret_cast<const AnySums*>(at); }
SK_INLINE void store_sums(int32_t* at, Sums value) { *reinterpret_cast<AnySums*>(at) = value; }

// sums (+)= Rows rows of a times Vectors vectors of columns of a panel of b
template <int Rows, int Vectors>
SK_NOINLINE void int8_tile(const int32_t* a, const int32_t* b, int64_t words, int32_t* sums, bool first) {
    Sums total[Rows][Vectors] = {};
    for (int64_t i = 0; i < words; ++i, ++a, b += kInt8Columns) {
        Sums columns[Vectors];
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            columns[v] = load_sums(b + v * kLanes);
            pin_register(columns[v]);
        }
        SK_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const Sums factor = a[r * kChunkWords] - Sums{};
            SK_UNROLL
            for (int v = 0; v < Vectors; ++v) add_products(total[r][v], columns[v], factor);
        }
    }
    SK_UNROLL
    for (int r = 0; r < Rows; ++r) {
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            int32_t* to = sums + r * kInt8MostColumns + v * kLanes;
            store_sums(to, first ? total[r][v] : load_sums(to) + total[r][v]);
        }
    }
}

template <int Rows>
SK_INLINE void int8_tile_of(int64_t columns, const int32_t* a, const int32_t* b, int64_t words, int32_t* sums,
                            bool first) {
    if (columns <= kLanes) return int8_tile<Rows, 1>(a, b, words, sums, first);
    int8_tile<Rows, kInt8Vectors>(a, b, words, sums, first);
}

// Elements of k, `step` apart, as one word; those behind the last are 0.
template <bool Unsigned>
SK_INLINE int32_t int8_word(const int8_t* from, int64_t step, int64_t count) {
    uint32_t word = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (kPerWord == 4)
            word |= uint32_t(uint8_t(from[i * step]) ^ (Unsigned ? 0x80 : 0)) << 8 * i;
        else
            word |= uint32_t(uint16_t(int16_t(from[i * step]))) << 16 * i;
    }
    return int32_t(word);
}

// kLanes words of elements that lie side by side.
template <bool Unsigned>
SK_INLINE Sums int8_words(const int8_t* from) {
#if SK_VNNI
    Sums words;
    __builtin_memcpy(&words, from, sizeof words);
    return Unsigned ? words ^ int32_t(0x80808080) : words;
#else
    typedef int8_t Bytes __attribute__((vector_size(kVectorBytes / 2)));
    typedef int16_t Shorts __attribute__((vector_size(kVectorBytes)));
    Bytes bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    return Sums(__builtin_convertvector(bytes, Shorts));
#endif
}

// Rows of a as words, and what is to be taken off their sums.
SK_NOINLINE void pack_int8_rows(const int8_t* a, int64_t row, int64_t column, int64_t rows, int64_t depth, int32_t* to,
                             int32_t* offsets) {
    for (int64_t r = 0; r < rows; ++r, a += row, to += kChunkWords) {
        int64_t word = 0;
        if (column == 1) {
            for (; (word + kLanes) * kPerWord <= depth; word += kLanes)
                store_sums(to + word, int8_words<false>(a + word * kPerWord));
        }
        for (; word * kPerWord < depth; ++word)
            to[word] = int8_word<false>(a + word * kPerWord * column, column, least(kPerWord, depth - word * kPerWord));
        if (SK_VNNI) {
            int32_t sum = 0;
            if (column == 1)
                for (int64_t i = 0; i < depth; ++i) sum += a[i];
            else
                for (int64_t i = 0; i < depth; ++i) sum += a[i * column];
            offsets[r] = int32_t(uint32_t(offsets[r]) + uint32_t(sum) * 128);
        }
    }
}

// Packs `columns` <= kInt8Columns columns of b as one panel. Missing columns repeat the last one or are not written:
// their sums are not stored.
SK_NOINLINE void pack_int8_panel(const int8_t* b, int64_t row, int64_t column, int64_t depth, int64_t columns,
                              int32_t* to) {
    int64_t done = 0;  // words
    if (row == 1) {
        for (; (done + kLanes) * kPerWord <= depth; done += kLanes) {
            for (int64_t j = 0; j < columns; j += kLanes) {
                Vector block[kLanes];
                SK_UNROLL
                for (int c = 0; c < kLanes; ++c)
                    block[c] = Vector(int8_words<true>(b + least(j + c, columns - 1) * column + done * kPerWord));
                transpose(block);
                SK_UNROLL
                for (int i = 0; i < kLanes; ++i) store_sums(to + (done + i) * kInt8Columns + j, Sums(block[i]));
            }
        }
    } else if (column == 1) {
        for (; (done + 1) * kPerWord <= depth; ++done) {
            const int8_t* from = b + done * kPerWord * row;
            int32_t* words = to + done * kInt8Columns;
            for (int64_t j = 0; j < columns; ++j) words[j] = int8_word<true>(from + j, row, kPerWord);
        }
    }
    for (; done * kPerWord < depth; ++done) {
        const int8_t* from = b + done * kPerWord * row;
        const int64_t count = least(kPerWord, depth - done * kPerWord);
        for (int64_t j = 0; j < columns; ++j)
            to[done * kInt8Columns + j] = int8_word<true>(from + j * column, row, count);
    }
}

SK_INLINE void add_int8_rows(int64_t rows, int64_t columns, const int32_t* a, const int32_t* b, int64_t words,
                             int32_t* sums, bool first) {
    int64_t i = 0;
    for (; i + kInt8Rows <= rows; i += kInt8Rows)
        int8_tile_of<kInt8Rows>(columns, a + i * kChunkWords, b, words, sums + i * kInt8MostColumns, first);
    for (; i + 2 <= rows; i += 2)
        int8_tile_of<2>(columns, a + i * kChunkWords, b, words, sums + i * kInt8MostColumns, first);
    if (i < rows) int8_tile_of<1>(columns, a + i * kChunkWords, b, words, sums + i * kInt8MostColumns, first);
}

// One tile: its sums, row by row, to finish(row, sums).
template <class Finish>
SK_INLINE void int8_tile_sums(const Int8Problem& p, const Tile& tile, Int8Scratch& scratch, Finish& finish) {
    constexpr int64_t chunk = kChunkWords * kPerWord;
    for (int64_t r = 0; r < tile.rows; ++r) scratch.offsets[r] = 0;
    for (int64_t k = 0; k < p.k; k += chunk) {
        const int64_t depth = least(chunk, p.k - k), words = divide_up(depth, kPerWord);
        const int8_t* a = p.a + p.of_a.at(tile.batch, tile.row, k);
        pack_int8_rows(a, p.of_a.row, p.of_a.column, tile.rows, depth, scratch.a, scratch.offsets);
        for (int64_t j = 0; j < tile.columns; j += kInt8Columns) {
            const int64_t columns = least(kInt8Columns, tile.columns - j);
            const int8_t* b = p.b + p.of_b.at(tile.batch, k, tile.column + j);
            int32_t* panel = scratch.b + j * kChunkWords;
            pack_int8_panel(b, p.of_b.row, p.of_b.column, depth, columns, panel);
            add_int8_rows(tile.rows, columns, scratch.a, panel, words, scratch.sums + j, k == 0);
        }
    }
    finish.columns(tile);
    for (int64_t r = 0; r < tile.rows; ++r) {
        int32_t* sums = scratch.sums + r * kInt8MostColumns;
        if (p.k == 0)
            for (int64_t i = 0; i < tile.columns; ++i) sums[i] = 0;
        const uint32_t offset = uint32_t(scratch.offsets[r]);
        for (int64_t i = 0; i < tile.columns; ++i) sums[i] = int32_t(uint32_t(sums[i]) - offset);
        finish.row(tile, tile.row + r, sums);
    }
}

// This block's share of the tiles, which are made smaller until the blocks have about equal work.
template <class Finish>
SK_NOINLINE void int8_product(const Int8Problem& p, Finish& finish) {
    if (p.batches == 0 || p.m == 0 || p.n == 0) return;
    Int8Scratch scratch;
    const int64_t blocks = sk::block_num();
    int64_t most_rows = kInt8MostRows, most_columns = kInt8MostColumns;
    const auto fewer_than = [&](int64_t wanted) {
        return blocks > 1 && p.batches * divide_up(p.m, most_rows) * divide_up(p.n, most_columns) < wanted;
    };
    while (fewer_than(4 * blocks) && most_columns > kInt8Columns) most_columns -= kInt8Columns;
    while (fewer_than(2 * blocks) && most_rows > 8 * kInt8Rows) most_rows -= kInt8Rows;
    while (fewer_than(blocks) && most_columns > kLanes) most_columns -= kLanes;
    const int64_t rows = round_up(divide_up(p.m, divide_up(p.m, most_rows)), kInt8Rows);
    const int64_t row_tiles = divide_up(p.m, rows), column_tiles = divide_up(p.n, most_columns);
    const Range units = block_share(p.batches * row_tiles * column_tiles);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        Tile tile;
        tile.row = unit % row_tiles * rows;
        tile.column = unit / row_tiles % column_tiles * most_columns;
        tile.batch = unit / row_tiles / column_tiles;
        tile.rows = least(rows, p.m - tile.row);
        tile.columns = least(most_columns, p.n - tile.column);
        int8_tile_sums(p, tile, scratch, finish);
    }
}

}  // namespace
