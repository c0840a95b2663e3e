// grouped_mm_rows.h: a matmul without packing: every weight is read once per kRowTile rows.
//
// A sum is always taken in the same order, wherever its tile begins, so results do not depend on how columns are
// divided.
#pragma once

#include <superkernel/kernel.h>

#include "vector.h"

namespace {

// out = a @ b, for m x k and k x n; strides are in elements.
template <class T>
struct Product {
    const T *a, *b;
    T* out;
    int64_t m, n, k;
    int64_t a_row, a_depth, b_depth, b_column, out_row, out_column;
};

constexpr int kRowTile = kRegisters == 32 ? 4 : 2;  // rows of a register tile
constexpr int64_t kRowBytes = 256 * 1024;           // of rows that are reused for every column, and stay in a cache

SK_INLINE int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

// Sums of R rows and C columns. Columns beyond the last repeat the last.
template <class T, int R, int C>
SK_NOINLINE void dot_tile(const Product<T>& p, int64_t row, int64_t column, int64_t columns, bool ahead) {
    const T *a[R], *b[C];
    SK_UNROLL
    for (int r = 0; r < R; ++r) a[r] = p.a + (row + r) * p.a_row;
    SK_UNROLL
    for (int c = 0; c < C; ++c) b[c] = p.b + (column + smaller(c, columns - 1)) * p.b_column;
    Vector total[R][C] = {};
    const auto add = [&](const Span<T>(&rows)[R], const Span<T>(&weights)[C]) {
        SK_UNROLL
        for (int part = 0; part < kParts<T>; ++part) {
            Vector factors[R];
            SK_UNROLL
            for (int r = 0; r < R; ++r) {
                factors[r] = part_of(rows[r], part);
                pin_register(factors[r]);
            }
            SK_UNROLL
            for (int c = 0; c < C; ++c) {
                const Vector weight = part_of(weights[c], part);
                SK_UNROLL
                for (int r = 0; r < R; ++r) total[r][c] = multiply_add(factors[r], weight, total[r][c]);
            }
        }
    };
    Span<T> rows[R], weights[C];
    int64_t i = 0;
    for (; i + kSpan<T> <= p.k; i += kSpan<T>) {
        SK_UNROLL
        for (int c = 0; c < C; ++c) {
            weights[c] = load_span(b[c] + i);
            if (ahead) __builtin_prefetch(b[c] + C * p.b_column + i, 0, 2);
        }
        SK_UNROLL
        for (int r = 0; r < R; ++r) rows[r] = load_span(a[r] + i);
        add(rows, weights);
    }
    if (i < p.k) {
        for (int c = 0; c < C; ++c) weights[c] = load_partial(b[c] + i, p.k - i);
        for (int r = 0; r < R; ++r) rows[r] = load_partial(a[r] + i, p.k - i);
        add(rows, weights);
    }
    SK_UNROLL
    for (int r = 0; r < R; ++r) {
        T* out = p.out + (row + r) * p.out_row + column * p.out_column;
        SK_UNROLL
        for (int c = 0; c < C; c += 4) {
            const Quad sums = sum_lanes(total[r][c], total[r][c + 1], total[r][c + 2], total[r][c + 3]);
            for (int64_t j = 0; j < 4 && c + j < columns; ++j) from_float(sums[j], out[(c + j) * p.out_column]);
        }
    }
}

// The same where b is contiguous along its columns: each row of b is a few vectors.
template <class T, int R, int Spans>
SK_NOINLINE void stream_tile(const Product<T>& p, int64_t row, int64_t column, int64_t columns) {
    constexpr int parts = kParts<T>, vectors = Spans * parts;
    const T* b = p.b + column;
    const T* a = p.a + row * p.a_row;
    Vector total[R][vectors] = {};
    const bool whole = columns == Spans * kSpan<T>;
    for (int64_t i = 0; i < p.k; ++i, b += p.b_depth, a += p.a_depth) {
        Vector weights[vectors];
        SK_UNROLL
        for (int s = 0; s < Spans; ++s) {
            const int64_t rest = columns - s * kSpan<T>;
            const Span<T> span = whole || rest >= kSpan<T> ? load_span(b + s * kSpan<T>)
                                                          : load_partial(b + s * kSpan<T>, rest > 0 ? rest : 0);
            SK_UNROLL
            for (int part = 0; part < parts; ++part) weights[s * parts + part] = part_of(span, part);
        }
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            const Vector factor = broadcast(to_float(a[r * p.a_row]));
            SK_UNROLL
            for (int v = 0; v < vectors; ++v) total[r][v] = multiply_add(factor, weights[v], total[r][v]);
        }
    }
    SK_UNROLL
    for (int r = 0; r < R; ++r) {
        float sums[vectors * kLanes];
        SK_UNROLL
        for (int s = 0; s < Spans; ++s) {
            const Vector first = total[r][s * parts], last = total[r][s * parts + parts - 1];
            store(sums + s * kSpan<T>, parts == 1 ? first : interleave_low(first, last));
            if (parts == 2) store(sums + s * kSpan<T> + kLanes, interleave_high(first, last));
        }
        T* out = p.out + (row + r) * p.out_row + column * p.out_column;
        for (int64_t j = 0; j < columns; ++j) from_float(sums[j], out[j * p.out_column]);
    }
}

// Rows in groups of up to kRowTile: run.template tile<R>(row).
template <class Run>
SK_INLINE void for_row_tiles(int64_t begin, int64_t end, const Run& run) {
    for (int64_t row = begin; row < end; row += kRowTile) {
        switch (end - row) {
            case 1: run.template tile<1>(row); break;
            case 2: run.template tile<2>(row); break;
            case 3: run.template tile<kRowTile == 4 ? 3 : 2>(row); break;
            default: run.template tile<kRowTile>(row); break;
        }
    }
}

template <class T>
struct Dots {
    const Product<T>& p;
    int64_t column, columns, first;
    template <int R>
    SK_INLINE void tile(int64_t row) const {
        dot_tile<T, R, 4>(p, row, column, columns, row == first);
    }
};

template <class T>
struct Streams {
    const Product<T>& p;
    int64_t column, columns;
    template <int R>
    SK_INLINE void tile(int64_t row) const {
        stream_tile<T, R, 4 / kParts<T>>(p, row, column, columns);
    }
};

// Columns [begin, end) of the product.
template <class T>
SK_NOINLINE void product_columns(const Product<T>& p, int64_t begin, int64_t end) {
    int64_t rows = kRowBytes / (int64_t(sizeof(T)) * (p.k + 1)) / kRowTile * kRowTile;
    if (rows < kRowTile) rows = kRowTile;
    if (p.b_depth == 1 && p.a_depth == 1) {
        if (p.m == 1) {
            for (int64_t j = begin; j < end; j += 8) dot_tile<T, 1, 8>(p, 0, j, smaller(8, end - j), true);
            return;
        }
        for (int64_t row = 0; row < p.m; row += rows)
            for (int64_t j = begin; j < end; j += 4)
                for_row_tiles(row, smaller(p.m, row + rows), Dots<T>{p, j, smaller(4, end - j), row});
    } else if (p.b_column == 1) {
        constexpr int64_t wide = 8 * kLanes, narrow = 4 * kLanes;
        if (p.m == 1) {
            for (int64_t j = begin; j < end; j += wide)
                stream_tile<T, 1, 8 / kParts<T>>(p, 0, j, smaller(wide, end - j));
            return;
        }
        for (int64_t j = begin; j < end; j += narrow) for_row_tiles(0, p.m, Streams<T>{p, j, smaller(narrow, end - j)});
    } else {
        for (int64_t row = 0; row < p.m; ++row) {
            for (int64_t j = begin; j < end; ++j) {
                const T *a = p.a + row * p.a_row, *b = p.b + j * p.b_column;
                float total = 0;
                for (int64_t i = 0; i < p.k; ++i)
                    total = multiply_add(to_float(a[i * p.a_depth]), to_float(b[i * p.b_depth]), total);
                from_float(total, p.out[row * p.out_row + j * p.out_column]);
            }
        }
    }
}

}  // namespace
