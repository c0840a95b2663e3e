// weight_only.h: floating-point rows times quantised weights: the problem, its rows as floats, and tiles for many rows.
#pragma once

#include "tiles.h"

namespace {

constexpr int64_t kPanelColumns = 64;  // columns of a tile: a multiple of every block of packed weights

// out = x @ w, where w has n columns of k elements; strides are in elements.
template <class T>
struct WeightOnlyProblem {
    const T* x;
    T* out;
    int64_t m, n, k;
    int64_t x_row, x_column, out_row, out_column;
};

// Rounds the sums of one row once, and stores them from `column` on.
template <class T>
SK_NOINLINE void store_row(const WeightOnlyProblem<T>& p, int64_t row, int64_t column, int64_t columns, const float* sums) {
    T* out = p.out + row * p.out_row + column * p.out_column;
    if (p.out_column == 1)
        for (int64_t i = 0; i < columns; ++i) from_float(sums[i], out[i]);
    else
        for (int64_t i = 0; i < columns; ++i) from_float(sums[i], out[i * p.out_column]);
}

// Register tiles over panels of floats. `weights.pack(column, columns, k, depth, panels)` dequantises weights into panels
// of kTileColumns columns, kTileColumns * kChunk floats apart; `weights.scale(column, columns, sums)` completes a row.
template <class T, class Weights>
SK_NOINLINE void tiled_weight_only(const WeightOnlyProblem<T>& p, const Weights& weights) {
    TileScratch scratch;
    const int64_t rows = least(kMostRows, round_up(p.m, kTileRows));
    const int64_t row_tiles = divide_up(p.m, rows), column_tiles = divide_up(p.n, kPanelColumns);
    const Range units = block_share(row_tiles * column_tiles);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t row = unit % row_tiles * rows, column = unit / row_tiles * kPanelColumns;
        const int64_t row_count = least(rows, p.m - row), columns = least(kPanelColumns, p.n - column);
        for (int64_t k = 0; k < p.k; k += kChunk) {
            const int64_t depth = least(kChunk, p.k - k);
            gather_rows<1>(p.x + row * p.x_row + k * p.x_column, p.x_row, p.x_column, row_count, depth, scratch.a, kChunk);
            weights.pack(column, columns, k, depth, scratch.b);
            for (int64_t j = 0; j < columns; j += kTileColumns)
                for (int64_t i = 0; i < row_count; i += kTileRows)
                    register_tile_of(divide_up(least(kTileColumns, columns - j), kLanes), scratch.a + i * kChunk, kChunk,
                                     scratch.b + j * kChunk, depth, scratch.sums + i * kMostColumns + j, kMostColumns,
                                     k == 0);
        }
        for (int64_t r = 0; r < row_count; ++r) {
            float* sums = scratch.sums + r * kMostColumns;
            if (p.k == 0)
                for (int64_t i = 0; i < columns; ++i) sums[i] = 0;
            weights.scale(column, columns, sums);
            store_row(p, row + r, column, columns, sums);
        }
    }
}

}  // namespace
