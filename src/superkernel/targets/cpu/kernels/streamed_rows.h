// streamed_rows.h: few rows of a times b, where b is read as four runs of memory, each from its beginning to its end.
//
// The machine's own prefetching follows runs best. Tiles of neighbouring rows of b jump from row to row, and lose a
// fifth to a half of the memory's speed by it; they are for more rows of a, where multiplying is the cost.
#pragma once

#include "problem.h"

namespace {

constexpr int kRuns = 4;
constexpr int kRowGroup = kRegisters == 32 ? 4 : 2;  // rows of a whose sums or factors fit the registers together
constexpr int64_t kNear = 1 << 20;                   // bytes of a b that the caches are expected to hold
constexpr int64_t kNearRuns = 1 << 19;               // the same where only asking too early is to be feared
constexpr int64_t kRunAhead = 1024;                  // bytes of a run that are asked for in advance, unless b is near

// A piece of the problem: `rows` x `depth` of a, as floats, times `depth` x `columns` of b.
template <class T>
struct Piece {
    const float* a;
    const T* b;
    float* sums;
    int64_t lda, ldb, ld;
    int64_t rows, columns, depth;
    int64_t ours;              // columns from here on that this block will read
    int64_t batches, b_bytes;  // of the whole problem
};

// The same elements of all runs.
template <class T, bool Ask>
SK_INLINE void load_runs(const T* b, int64_t step, Span<T> (&weights)[kRuns]) {
    SK_UNROLL
    for (int run = 0; run < kRuns; ++run) {
        weights[run] = load_span(b + run * step);
        if (Ask) __builtin_prefetch(b + run * step + kRunAhead / sizeof(T), 0, 2);
    }
}

template <class T>
SK_INLINE void load_some_of_runs(const T* b, int64_t step, int64_t count, Span<T> (&weights)[kRuns]) {
    SK_UNROLL
    for (int run = 0; run < kRuns; ++run) weights[run] = load_some(b + run * step, count);
}

template <class T>
SK_INLINE void add_products(const float* a, const Span<T> (&weights)[kRuns], Vector (&total)[kRuns]) {
    SK_UNROLL
    for (int part = 0; part < kParts<T>; ++part) {
        Vector row = load(a + part * kLanes);
        keep(row);
        SK_UNROLL
        for (int run = 0; run < kRuns; ++run)
            total[run] = multiply_add(part_of(weights[run], part), row, total[run]);
    }
}

// b is contiguous along k: dot products of one row of a with a column of each run. The number of columns that are done.
template <class T, bool Ask>
SK_APART int64_t add_runs_of_columns(const Piece<T>& p) {
    const int64_t length = p.columns / kRuns, step = length * p.ldb;
    const int64_t whole = p.depth / kSpan<T> * kSpan<T>;
    for (int64_t j = 0; j < length; ++j) {
        Vector total[kRuns] = {};
        Span<T> weights[kRuns];
        const T* b = p.b + j * p.ldb;
        for (int64_t i = 0; i < whole; i += kSpan<T>) {
            load_runs<T, Ask>(b + i, step, weights);
            add_products<T>(p.a + i, weights, total);
        }
        if (whole < p.depth) {
            load_some_of_runs(b + whole, step, p.depth - whole, weights);
            add_products<T>(p.a + whole, weights, total);
        }
        const Quad sum = sum_lanes(total[0], total[1], total[2], total[3]);
        SK_UNROLL
        for (int run = 0; run < kRuns; ++run) p.sums[run * length + j] += sum[run];
    }
    return kRuns * length;
}

template <class T, int R>
SK_INLINE void add_multiples(const Vector (&factors)[R][kRuns], const Span<T> (&weights)[kRuns], float* sums,
                             int64_t ld) {
    SK_UNROLL
    for (int part = 0; part < kParts<T>; ++part) {
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            float* at = sums + r * ld + part * kLanes;
            Vector total = load(at);
            SK_UNROLL
            for (int run = 0; run < kRuns; ++run)
                total = multiply_add(factors[r][run], part_of(weights[run], part), total);
            store(at, total);
        }
    }
}

// b is contiguous along n: multiples of a row of each run, for R rows of a. How deep it went.
template <class T, int R, bool Ask>
SK_APART int64_t add_runs_of_rows(const Piece<T>& p) {
    const int64_t length = p.depth / kRuns, step = length * p.ldb;
    const int64_t whole = p.columns / kSpan<T> * kSpan<T>;
    for (int64_t i = 0; i < length; ++i) {
        Vector factors[R][kRuns];
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            SK_UNROLL
            for (int run = 0; run < kRuns; ++run) {
                factors[r][run] = broadcast(p.a[r * p.lda + run * length + i]);
                keep(factors[r][run]);
            }
        }
        Span<T> weights[kRuns];
        const T* b = p.b + i * p.ldb;
        for (int64_t j = 0; j < whole; j += kSpan<T>) {
            load_runs<T, Ask>(b + j, step, weights);
            add_multiples<T, R>(factors, weights, p.sums + j, p.ld);
        }
        if (whole < p.columns) {
            load_some_of_runs(b + whole, step, p.columns - whole, weights);
            add_multiples<T, R>(factors, weights, p.sums + whole, p.ld);
        }
    }
    return kRuns * length;
}

// b is contiguous along k: one row, because runs are multiplied more slowly than tiles.
SK_INLINE bool by_runs_of_columns(int64_t rows) { return rows == 1; }

// b is contiguous along n: batches, which blocks need not divide, because parts of rows are no runs; several rows of a
// where b is near. The order of sums depends on this, so nothing may that differs from block to block.
SK_INLINE bool by_runs_of_rows(int64_t batches, int64_t rows, int64_t b_bytes) {
    return batches > 1 && (rows == 1 || (b_bytes <= kNear && rows <= kRowGroup));
}

template <class T>
SK_INLINE int64_t add_runs_of_rows(const Piece<T>& p) {
    const bool asks = p.columns == p.ldb && p.b_bytes > kNearRuns;
    switch (p.rows) {
        case 1: return asks ? add_runs_of_rows<T, 1, true>(p) : add_runs_of_rows<T, 1, false>(p);
        case 2: return add_runs_of_rows<T, 2, false>(p);
        case 3: return add_runs_of_rows<T, kRowGroup == 4 ? 3 : 1, false>(p);
        default: return add_runs_of_rows<T, kRowGroup, false>(p);
    }
}

template <class T>
SK_INLINE int64_t add_runs_of_columns(const Piece<T>& p) {
    return p.b_bytes > kNearRuns ? add_runs_of_columns<T, true>(p) : add_runs_of_columns<T, false>(p);
}

}  // namespace
