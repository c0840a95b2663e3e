// streamed_rows.h: GEMV and small batched matmul: b is divided into four streams, each read sequentially.
//
// The hardware prefetcher follows sequential streams best. Tiles of neighbouring rows of b jump from row to row and lose
// a fifth to a half of the memory bandwidth; they are for more rows of a, where arithmetic is the bottleneck.
#pragma once

#include "problem.h"

namespace {

constexpr int kStreams = 4;
constexpr int kRowGroup = kRegisters == 32 ? 4 : 2;  // rows of a register tile
constexpr int64_t kCachedBytes = 1 << 20;                   // a b of at most this size is expected to be cached
constexpr int64_t kNoPrefetchBytes = 1 << 19;               // below this size of b, prefetching only costs
constexpr int64_t kStreamPrefetchBytes = 1024;                  // how far ahead of the loads a stream is prefetched

// `rows` x `depth` of a, as floats, times `depth` x `columns` of b.
template <class T>
struct Subproblem {
    const float* a;
    const T* b;
    float* sums;
    int64_t lda, ldb, ld;
    int64_t rows, columns, depth;
    int64_t block_columns;              // columns, from the first of these on, that belong to this block
    int64_t batches, b_bytes;  // of the whole problem
    // Where results are stored from registers, c added; null: they are added to the sums.
    float* out = nullptr;
    const float* c = nullptr;
    int64_t out_row = 0, c_row = 0;
};

// One span of each stream.
template <class T, bool Prefetch>
SK_INLINE void load_streams(const T* b, int64_t step, Span<T> (&weights)[kStreams]) {
    SK_UNROLL
    for (int stream = 0; stream < kStreams; ++stream) {
        weights[stream] = load_span(b + stream * step);
        if (Prefetch) __builtin_prefetch(b + stream * step + kStreamPrefetchBytes / sizeof(T), 0, 2);
    }
}

template <class T>
SK_INLINE void load_stream_tails(const T* b, int64_t step, int64_t count, Span<T> (&weights)[kStreams]) {
    SK_UNROLL
    for (int stream = 0; stream < kStreams; ++stream) weights[stream] = load_partial(b + stream * step, count);
}

template <class T>
SK_INLINE void add_products(const float* a, const Span<T> (&weights)[kStreams], Vector (&total)[kStreams]) {
    SK_UNROLL
    for (int part = 0; part < kParts<T>; ++part) {
        Vector row = load(a + part * kLanes);
        pin_register(row);
        SK_UNROLL
        for (int stream = 0; stream < kStreams; ++stream)
            total[stream] = multiply_add(part_of(weights[stream], part), row, total[stream]);
    }
}

// b is contiguous along k: dot products of one row of a with a column of each stream. Returns the columns computed.
template <class T, bool Prefetch>
SK_NOINLINE int64_t add_streamed_columns(const Subproblem<T>& p) {
    const int64_t length = p.columns / kStreams, step = length * p.ldb;
    const int64_t whole = p.depth / kSpan<T> * kSpan<T>;
    for (int64_t j = 0; j < length; ++j) {
        Vector total[kStreams] = {};
        Span<T> weights[kStreams];
        const T* b = p.b + j * p.ldb;
        for (int64_t i = 0; i < whole; i += kSpan<T>) {
            load_streams<T, Prefetch>(b + i, step, weights);
            add_products<T>(p.a + i, weights, total);
        }
        if (whole < p.depth) {
            load_stream_tails(b + whole, step, p.depth - whole, weights);
            add_products<T>(p.a + whole, weights, total);
        }
        const Quad sum = sum_lanes(total[0], total[1], total[2], total[3]);
        SK_UNROLL
        for (int stream = 0; stream < kStreams; ++stream) p.sums[stream * length + j] += sum[stream];
    }
    return kStreams * length;
}

template <class T, int R>
SK_INLINE void add_multiples(const Vector (&factors)[R][kStreams], const Span<T> (&weights)[kStreams], float* sums,
                             int64_t ld) {
    SK_UNROLL
    for (int part = 0; part < kParts<T>; ++part) {
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            float* at = sums + r * ld + part * kLanes;
            Vector total = load(at);
            SK_UNROLL
            for (int stream = 0; stream < kStreams; ++stream)
                total = multiply_add(factors[r][stream], part_of(weights[stream], part), total);
            store(at, total);
        }
    }
}

// b is contiguous along n: adds multiples of a row of each stream (AXPY), for R rows of a. Returns the depth covered.
template <class T, int R, bool Prefetch>
SK_NOINLINE int64_t add_streamed_rows(const Subproblem<T>& p) {
    const int64_t length = p.depth / kStreams, step = length * p.ldb;
    const int64_t whole = p.columns / kSpan<T> * kSpan<T>;
    for (int64_t i = 0; i < length; ++i) {
        Vector factors[R][kStreams];
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            SK_UNROLL
            for (int stream = 0; stream < kStreams; ++stream) {
                factors[r][stream] = broadcast(p.a[r * p.lda + stream * length + i]);
                pin_register(factors[r][stream]);
            }
        }
        Span<T> weights[kStreams];
        const T* b = p.b + i * p.ldb;
        for (int64_t j = 0; j < whole; j += kSpan<T>) {
            load_streams<T, Prefetch>(b + j, step, weights);
            add_multiples<T, R>(factors, weights, p.sums + j, p.ld);
        }
        if (whole < p.columns) {
            load_stream_tails(b + whole, step, p.columns - whole, weights);
            add_multiples<T, R>(factors, weights, p.sums + whole, p.ld);
        }
    }
    return kStreams * length;
}

// b is contiguous along k: only for GEMV, because tiles compute faster for more rows.
SK_INLINE bool streams_columns(int64_t rows) { return rows == 1; }

// b is contiguous along n: only for batches, where blocks need not divide rows (a part of a row is no sequential
// stream); for several rows of a only if b is cached. The order of sums depends on this choice, so it must not depend on
// the block.
SK_INLINE bool streams_rows(int64_t batches, int64_t rows, int64_t b_bytes) {
    return batches > 1 && (rows == 1 || (b_bytes <= kCachedBytes && rows <= kRowGroup));
}

template <class T>
SK_INLINE int64_t add_streamed_rows(const Subproblem<T>& p) {
    const bool prefetches = p.columns == p.ldb && p.b_bytes > kNoPrefetchBytes;
    switch (p.rows) {
        case 1: return prefetches ? add_streamed_rows<T, 1, true>(p) : add_streamed_rows<T, 1, false>(p);
        case 2: return add_streamed_rows<T, 2, false>(p);
        case 3: return add_streamed_rows<T, kRowGroup == 4 ? 3 : 1, false>(p);
        default: return add_streamed_rows<T, kRowGroup, false>(p);
    }
}

template <class T>
SK_INLINE int64_t add_streamed_columns(const Subproblem<T>& p) {
    return p.b_bytes > kNoPrefetchBytes ? add_streamed_columns<T, true>(p) : add_streamed_columns<T, false>(p);
}

}  // namespace
