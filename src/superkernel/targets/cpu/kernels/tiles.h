// tiles.h: matmul with many rows: register tiles over packed panels of floats.
//
// An output element is always the sum over chunks of k of sums taken one after the other, wherever its tile begins.
#pragma once

#include "problem.h"

namespace {

constexpr int kTileRows = 6;  // rows and vectors of a register tile
constexpr int kTileVectors = kRegisters == 32 ? 4 : 2;
constexpr int64_t kTileColumns = kTileVectors * kLanes;
// Limits of a cache tile: large, so that little is packed twice; all of it fits the L2 cache.
constexpr int64_t kMostRows = 64 * kTileRows;
constexpr int64_t kMostColumns = 256;
constexpr int64_t kChunk = 128;  // of k: a panel of b fits the L1 cache

struct TileScratch {
    alignas(64) float a[kMostRows * kChunk];     // rows, kChunk apart
    alignas(64) float b[kMostColumns * kChunk];  // panels of kTileColumns columns; in each, row after row
    alignas(64) float sums[kMostRows * kMostColumns];
};

// sums (+)= kTileRows rows of a times Vectors vectors of columns of a panel of b; `lda` and `ld` are between rows
template <int Vectors>
SK_NOINLINE void register_tile(const float* a, int64_t lda, const float* b, int64_t depth, float* sums, int64_t ld,
                               bool first) {
    Vector total[kTileRows][Vectors] = {};
    for (int64_t i = 0; i < depth; ++i, ++a, b += kTileColumns) {
        Vector columns[Vectors];
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            columns[v] = load(b + v * kLanes);
            pin_register(columns[v]);
        }
        SK_UNROLL
        for (int r = 0; r < kTileRows; ++r) {
            const Vector factor = broadcast(a[r * lda]);
            SK_UNROLL
            for (int v = 0; v < Vectors; ++v) total[r][v] = multiply_add(factor, columns[v], total[r][v]);
        }
    }
    SK_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            float* to = sums + r * ld + v * kLanes;
            store(to, first ? total[r][v] : load(to) + total[r][v]);
        }
    }
}

SK_INLINE void register_tile_of(int64_t vectors, const float* a, int64_t lda, const float* b, int64_t depth,
                                float* sums, int64_t ld, bool first) {
    if (vectors == 1) return register_tile<1>(a, lda, b, depth, sums, ld, first);
    if (vectors == 2) return register_tile<2>(a, lda, b, depth, sums, ld, first);
    if (vectors == 3) return register_tile<kTileVectors == 4 ? 3 : 1>(a, lda, b, depth, sums, ld, first);
    return register_tile<kTileVectors>(a, lda, b, depth, sums, ld, first);
}

#if defined(__AVX__) && !defined(__AVX512F__)
// Three stages of shuffles that are one instruction each: pairs, quads, halves.
SK_INLINE void transpose(Vector (&rows)[kLanes]) {
    Vector pairs[kLanes], quads[kLanes];
    SK_UNROLL
    for (int i = 0; i < kLanes; i += 2) {
        pairs[i] = SK_SHUFFLE(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = SK_SHUFFLE(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    SK_UNROLL
    for (int i = 0; i < kLanes; i += 4) {
        SK_UNROLL
        for (int half = 0; half < 2; ++half) {
            quads[i + 2 * half] = SK_SHUFFLE(pairs[i + half], pairs[i + 2 + half], 0, 1, 8, 9, 4, 5, 12, 13);
            quads[i + 2 * half + 1] = SK_SHUFFLE(pairs[i + half], pairs[i + 2 + half], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    SK_UNROLL
    for (int i = 0; i < kLanes / 2; ++i) {
        rows[i] = SK_SHUFFLE(quads[i], quads[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[i + 4] = SK_SHUFFLE(quads[i], quads[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
#elif defined(__AVX512F__)
// Elements and then pairs of elements are interleaved inside groups of four lanes; then the groups are exchanged.
SK_INLINE void transpose(Vector (&rows)[kLanes]) {
    Vector mixed[kLanes];
    SK_UNROLL
    for (int i = 0; i < kLanes; i += 2) {
        mixed[i] = SK_SHUFFLE(rows[i], rows[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        mixed[i + 1] = SK_SHUFFLE(rows[i], rows[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
    SK_UNROLL
    for (int i = 0; i < kLanes; i += 4) {
        SK_UNROLL
        for (int half = 0; half < 2; ++half) {
            const Vector x = mixed[i + half], y = mixed[i + 2 + half];
            rows[i + 2 * half] = SK_SHUFFLE(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
            rows[i + 2 * half + 1] = SK_SHUFFLE(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
        }
    }
    SK_UNROLL
    for (int i = 0; i < 4; ++i) {  // rows[i + 4 * g]: of the rows from 4 * g on, in group l the column i + 4 * l
        SK_UNROLL
        for (int half = 0; half < 2; ++half) {
            const Vector x = rows[i + 8 * half], y = rows[i + 8 * half + 4];
            mixed[i + 8 * half] = SK_SHUFFLE(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
            mixed[i + 8 * half + 4] = SK_SHUFFLE(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
        }
        SK_UNROLL
        for (int half = 0; half < 2; ++half) {
            const Vector x = mixed[i + 4 * half], y = mixed[i + 4 * half + 8];
            rows[i + 8 * half] = SK_SHUFFLE(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
            rows[i + 8 * half + 4] = SK_SHUFFLE(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
        }
    }
}
#else
SK_INLINE void transpose(Vector (&rows)[kLanes]) {
    for (int stage = 1; stage < kLanes; stage *= 2) {
        Vector mixed[kLanes];
        SK_UNROLL
        for (int i = 0; i < kLanes / 2; ++i) {
            mixed[2 * i] = interleave_low(rows[i], rows[i + kLanes / 2]);
            mixed[2 * i + 1] = interleave_high(rows[i], rows[i + kLanes / 2]);
        }
        SK_UNROLL
        for (int i = 0; i < kLanes; ++i) rows[i] = mixed[i];
    }
}
#endif

// As many elements as a vector has.
template <class T>
SK_INLINE Vector load_floats(const T* from) {
    alignas(64) float line[kLanes];
    SK_UNROLL
    for (int i = 0; i < kLanes; ++i) line[i] = to_float(from[i]);
    return load(line);
}
template <>
SK_INLINE Vector load_floats(const float* from) {
    return load(from);
}

// Packs `columns` <= Width columns of b as one panel. Missing columns are not written: their sums are not stored.
template <int64_t Width = kTileColumns, class T>
SK_NOINLINE void pack_panel(const T* b, int64_t row, int64_t column, int64_t depth, int64_t columns, float* to) {
    if (column == 1) {
        for (int64_t i = 0; i < depth; ++i)
            for (int64_t j = 0; j < columns; ++j) to[i * Width + j] = to_float(b[i * row + j]);
        return;
    }
    int64_t done = 0;  // rows of the panel
    if (row == 1) {
        for (; done + kLanes <= depth; done += kLanes) {
            for (int64_t j = 0; j < columns; j += kLanes) {
                Vector block[kLanes];
                SK_UNROLL
                for (int c = 0; c < kLanes; ++c)
                    block[c] = load_floats(b + least(j + c, columns - 1) * column + done);
                transpose(block);
                SK_UNROLL
                for (int i = 0; i < kLanes; ++i) store(to + (done + i) * Width + j, block[i]);
            }
        }
    }
    for (int64_t j = 0; j < columns; ++j)
        for (int64_t i = done; i < depth; ++i) to[i * Width + j] = to_float(b[i * row + j * column]);
}

struct Tile {
    int64_t batch, row, column, rows, columns;
};

template <class T>
SK_INLINE void compute_tile(const Problem<T>& p, const Tile& tile, TileScratch& scratch) {
    for (int64_t k = 0; k < p.k; k += kChunk) {
        const int64_t depth = least(kChunk, p.k - k);
        const T* a = p.a + p.of_a.at(tile.batch, tile.row, k);
        gather_rows<1>(a, p.of_a.row, p.of_a.column, tile.rows, depth, scratch.a, kChunk);
        for (int64_t j = 0; j < tile.columns; j += kTileColumns) {
            const int64_t columns = least(kTileColumns, tile.columns - j);
            const T* b = p.b + p.of_b.at(tile.batch, k, tile.column + j);
            float* panel = scratch.b + j * kChunk;
            pack_panel(b, p.of_b.row, p.of_b.column, depth, columns, panel);
            for (int64_t i = 0; i < tile.rows; i += kTileRows)
                register_tile_of(divide_up(columns, kLanes), scratch.a + i * kChunk, kChunk, panel, depth,
                                 scratch.sums + i * kMostColumns + j, kMostColumns, k == 0);
        }
    }
    finish(p, tile.batch, tile.row, tile.column, tile.rows, tile.columns, scratch.sums, kMostColumns);
}

// This block's share of the tiles, which are made smaller until the blocks have about equal work.
template <class T>
SK_NOINLINE void tiled_matmul(const Problem<T>& p) {
    TileScratch scratch;
    const int64_t blocks = sk::block_num();
    int64_t most_rows = kMostRows, most_columns = kMostColumns;
    const auto fewer_than = [&](int64_t wanted) {
        return blocks > 1 && p.batches * divide_up(p.m, most_rows) * divide_up(p.n, most_columns) < wanted;
    };
    while (fewer_than(4 * blocks) && most_columns > kTileColumns) most_columns -= kTileColumns;
    while (fewer_than(2 * blocks) && most_rows > 8 * kTileRows) most_rows -= kTileRows;
    while (fewer_than(blocks) && most_rows > 2 * kTileRows) most_rows -= kTileRows;
    const int64_t rows = round_up(divide_up(p.m, divide_up(p.m, most_rows)), kTileRows);
    const int64_t row_tiles = divide_up(p.m, rows), column_tiles = divide_up(p.n, most_columns);
    const Range units = block_share(p.batches * row_tiles * column_tiles);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        Tile tile;
        tile.row = unit % row_tiles * rows;
        tile.column = unit / row_tiles % column_tiles * most_columns;
        tile.batch = unit / row_tiles / column_tiles;
        tile.rows = least(rows, p.m - tile.row);
        tile.columns = least(most_columns, p.n - tile.column);
        compute_tile(p, tile, scratch);
    }
}

}  // namespace
