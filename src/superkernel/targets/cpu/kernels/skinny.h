// skinny.h: matmul with few rows of a, where reading b is the cost: every element of b is read once, in place.
//
// The sum of an output element is always taken in the same order, wherever its tile begins, so that results do not
// depend on the number of blocks.
#pragma once

#include "streamed_rows.h"

namespace {

constexpr int64_t kFewRows = 32;
constexpr int64_t kRowElements = 16384;  // elements of a that are floats in the scratch memory at a time
constexpr int64_t kRowSums = 4096;       // sums of a tile: half of a first-level cache
constexpr int64_t kGranule = 16;         // columns that are never divided between blocks: a cache line
constexpr int64_t kStreamsOfOne = 8;     // rows of b that are read side by side for one row of a,
constexpr int64_t kStreamsOfMany = 16;   // and for several: their sums are loaded and stored less often
constexpr int64_t kPage = 4096;
constexpr int64_t kStreamAhead = 16384;  // bytes of those that are asked for in advance, at least
constexpr int64_t kAhead = 8192;         // bytes that are asked for in advance
constexpr int64_t kEarly = 32768;        // bytes of b that are asked for before a is there

// The direction in which b is contiguous.
enum class Along { kDepth, kColumns };

struct RowScratch {
    alignas(64) float a[kRowElements + kFewRows * kLanes];
    alignas(64) float sums[kRowSums];
};

// Which of the `Width` lines that a tile reads at a time are asked for in advance by one group of rows: memory is to
// be busy while any group computes, not only while the first one does.
struct Ahead {
    int first, last;
};

// Calls tile.template run<R>(row, ahead) for groups of R <= kRowGroup rows, as equal as possible.
template <int Width, class Tile>
SK_INLINE void for_row_groups(int64_t rows, const Tile& tile) {
    const int64_t groups = divide_up(rows, kRowGroup);
    for (int64_t row = 0, group = 0; row < rows; ++group) {
        const int64_t size = divide_up(rows - row, groups - group);
        const Ahead ahead{int(Width * group / groups), int(Width * (group + 1) / groups)};
        switch (size) {
            case 1: tile.template run<1>(row, ahead); break;
            case 2: tile.template run<2>(row, ahead); break;
            case 3: tile.template run<kRowGroup == 4 ? 3 : 1>(row, ahead); break;
            default: tile.template run<kRowGroup>(row, ahead); break;
        }
        row += size;
    }
}

// Columns of b, read side by side. One pointer and one distance stay in registers; left alone, the compiler keeps a
// pointer to read from and one to prefetch from for every column, more than there are registers.
template <class T>
struct Columns {
    const T* first;
    int64_t step;

    SK_INLINE const T* operator[](int c) const { return first + c * step; }
    SK_INLINE void go_on(int64_t elements) {
        first += elements;
        asm("" : "+r"(first));
    }
};

// Dot products of R rows of a with four columns of b. Of the last tile only `there` columns may exist: the others are
// the last one once more.
template <class T>
struct DotTile {
    static constexpr int C = 4;
    const Piece<T>& p;
    int64_t column;

    template <int R>
    SK_INLINE void run(int64_t row, Ahead lines) const {
        Vector total[R][C] = {};
        const int64_t there = p.columns - column;
        const T* b = p.b + column * p.ldb;
        const float* a = p.a + row * p.lda;
        const int64_t whole = there < C ? 0 : p.depth / kSpan<T> * kSpan<T>;
        if (whole > 0) products<R>(a, b, whole, lines, total);
        for (int64_t i = whole; i < p.depth; i += kSpan<T>) {
            Span<T> weights[C];
            for (int c = 0; c < C; ++c)
                weights[c] = load_some(b + least(c, there - 1) * p.ldb + i, least(kSpan<T>, p.depth - i));
            add<R>(a + i, weights, total);
        }
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            AnyQuad& to = *reinterpret_cast<AnyQuad*>(p.sums + (row + r) * p.ld + column);
            to = to + sum_lanes(total[r][0], total[r][1], total[r][2], total[r][3]);
        }
    }

    // Whole spans of whole tiles.
    template <int R>
    SK_INLINE void products(const float* a, const T* first, int64_t depth, Ahead lines, Vector (&total)[R][C]) const {
        // Whole tiles in advance, to the second-level cache: the machine's own prefetching begins anew in every column.
        const int64_t later = divide_up(kAhead, C * p.depth * int64_t(sizeof(T))) * C;
        if (column + later >= p.ours) lines.last = lines.first;  // somebody else's, or nobody's
        Columns<T> b{first, p.ldb}, ahead{first + later * p.ldb, p.ldb};
        for (const float* end = a + depth; a < end; a += kSpan<T>) {
            Span<T> weights[C];
            SK_UNROLL
            for (int c = 0; c < C; ++c) {
                weights[c] = load_span(b[c]);
                if (R > 1) keep(weights[c]);
                if (c >= lines.first && c < lines.last) __builtin_prefetch(ahead[c], 0, 2);
            }
            add<R>(a, weights, total);
            b.go_on(kSpan<T>);
            ahead.go_on(kSpan<T>);
        }
    }

    template <int R>
    SK_INLINE void add(const float* a, const Span<T> (&weights)[C], Vector (&total)[R][C]) const {
        SK_UNROLL
        for (int part = 0; part < kParts<T>; ++part) {
            Vector rows[R];
            SK_UNROLL
            for (int r = 0; r < R; ++r) {
                rows[r] = load(a + r * p.lda + part * kLanes);
                keep(rows[r]);
            }
            SK_UNROLL
            for (int c = 0; c < C; ++c) {
                const Vector some = part_of(weights[c], part);
                SK_UNROLL
                for (int r = 0; r < R; ++r) total[r][c] = multiply_add(some, rows[r], total[r][c]);
            }
        }
    }
};

// b is contiguous along k: dot products.
template <class T>
SK_APART void add_dots(const Piece<T>& p) {
    const int64_t done = by_runs_of_columns(p.rows) ? add_runs_of_columns(p) : 0;
    for (int64_t j = done; j < p.columns; j += DotTile<T>::C) for_row_groups<DotTile<T>::C>(p.rows, DotTile<T>{p, j});
}

// R rows of a times the rows [depth, depth_end) of b, over Spans spans of columns, or over a part of one.
template <class T, int Spans>
struct StreamTile {
    const Piece<T>& p;
    int64_t depth, depth_end, column, width, ahead;

    template <int R>
    SK_INLINE void run(int64_t row, Ahead lines) const {
        constexpr int parts = kParts<T>;
        Vector total[R][Spans * parts];
        float* sums = p.sums + row * p.ld + column;
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            SK_UNROLL
            for (int v = 0; v < Spans * parts; ++v) total[r][v] = load(sums + r * p.ld + v * kLanes);
        }
        const T* b = p.b + depth * p.ldb + column;
        for (int64_t i = depth; i < depth_end; ++i, b += p.ldb) {
            Vector weights[Spans * parts];
            SK_UNROLL
            for (int s = 0; s < Spans; ++s) {
                const T* at = b + s * kSpan<T>;
                const Span<T> span = Spans > 1 || width == kSpan<T> ? load_span(at) : load_some(at, width);
                if (s >= lines.first && s < lines.last) __builtin_prefetch(at + ahead, 0, 2);
                SK_UNROLL
                for (int part = 0; part < parts; ++part) {
                    weights[s * parts + part] = part_of(span, part);
                    if (R > 1) keep(weights[s * parts + part]);
                }
            }
            SK_UNROLL
            for (int r = 0; r < R; ++r) {
                const Vector factor = broadcast(p.a[(row + r) * p.lda + i]);
                SK_UNROLL
                for (int v = 0; v < Spans * parts; ++v) total[r][v] = multiply_add(factor, weights[v], total[r][v]);
            }
        }
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            SK_UNROLL
            for (int v = 0; v < Spans * parts; ++v) store(sums + r * p.ld + v * kLanes, total[r][v]);
        }
    }
};

// b is contiguous along n: from the row `first` on, a few of its rows are streamed at a time, the sums stay in the cache.
template <class T, int Spans>
SK_INLINE void add_streams_by(const Piece<T>& p, int64_t first, int64_t streams) {
    const int64_t rows_ahead = p.ldb == 0 ? 1 : divide_up(kStreamAhead, p.ldb * int64_t(sizeof(T)));
    const int64_t ahead = (rows_ahead > streams ? rows_ahead : streams) * p.ldb;
    for (int64_t i = first; i < p.depth; i += streams) {
        const int64_t end = least(i + streams, p.depth);
        int64_t j = 0;
        for (; j + Spans * kSpan<T> <= p.columns; j += Spans * kSpan<T>)
            for_row_groups<Spans>(p.rows, StreamTile<T, Spans>{p, i, end, j, Spans * kSpan<T>, ahead});
        for (; j < p.columns; j += kSpan<T>)
            for_row_groups<1>(p.rows, StreamTile<T, 1>{p, i, end, j, least(kSpan<T>, p.columns - j), ahead});
    }
}

// One row needs few sums at a time and is nothing but loads. Long rows of b lie in different pages, where more of them
// side by side keep the memory busier; of short ones, which the caches may hold, fewer are faster.
template <class T>
SK_APART void add_streams(const Piece<T>& p) {
    const int64_t done = by_runs_of_rows(p.batches, p.rows, p.b_bytes) ? add_runs_of_rows(p) : 0;
    const bool long_rows = p.ldb * int64_t(sizeof(T)) >= kPage;
    if (p.rows == 1 && long_rows)
        add_streams_by<T, 2 / kParts<T>>(p, done, kStreamsOfOne);
    else
        add_streams_by<T, 4 / kParts<T>>(p, done, p.rows == 1 ? kStreamsOfOne / 2 : kStreamsOfMany);
}

// Sums that add_streams kept by the parts of spans, in the order of the columns.
template <class T>
SK_INLINE void order_columns(float* sums, int64_t ld, int64_t rows) {
    if (kParts<T> == 1) return;
    for (int64_t i = 0; i < rows * ld; i += 2 * kLanes) {
        const Vector even = load(sums + i), odd = load(sums + i + kLanes);
        store(sums + i, interleave_low(even, odd));
        store(sums + i + kLanes, interleave_high(even, odd));
    }
}

// How much of the problem is a piece: what fits the scratch memory.
struct Extent {
    int64_t columns, depth;
};

template <class T>
SK_INLINE Extent extent_of_pieces(const Problem<T>& p) {
    constexpr int64_t unit = 2 * kLanes;
    return {kRowSums / p.m / unit * unit, least(kRowElements / p.m / unit * unit, round_up(p.k, unit))};
}

template <class T>
SK_INLINE int64_t bytes_of_b(const Problem<T>& p) {
    return p.batches * p.n * p.k * int64_t(sizeof(T));
}

// Columns [begin, end) of one batch.
template <class T>
SK_APART void few_rows_of(const Problem<T>& p, Along along, int64_t batch, Range columns, RowScratch& scratch) {
    const Extent most = extent_of_pieces(p);
    for (int64_t begin = columns.begin; begin < columns.end; begin += most.columns) {
        Piece<T> piece;
        piece.rows = p.m;
        piece.columns = least(most.columns, columns.end - begin);
        piece.ours = columns.end - begin;
        piece.batches = p.batches;
        piece.b_bytes = bytes_of_b(p);
        piece.a = scratch.a;
        piece.sums = scratch.sums;
        piece.lda = most.depth + kLanes;  // so that rows do not fall on the same lines of a cache
        piece.ld = round_up(piece.columns, 2 * kLanes);
        piece.ldb = along == Along::kDepth ? p.of_b.column : p.of_b.row;
        for (int64_t i = 0; i < piece.rows * piece.ld; i += kLanes) store(scratch.sums + i, Vector{});
        for (int64_t i = 0; i < p.k; i += most.depth) {
            piece.depth = least(most.depth, p.k - i);
            piece.b = p.b + p.of_b.at(batch, i, begin);
            const T* a = p.a + p.of_a.at(batch, 0, i);
            if (along == Along::kDepth) {
                gather_rows<kParts<T>>(a, p.of_a.row, p.of_a.column, p.m, piece.depth, scratch.a, piece.lda);
                add_dots(piece);
            } else {
                gather_rows<1>(a, p.of_a.row, p.of_a.column, p.m, piece.depth, scratch.a, piece.lda);
                add_streams(piece);
            }
        }
        if (along == Along::kColumns) order_columns<T>(scratch.sums, piece.ld, p.m);
        finish(p, batch, 0, begin, p.m, piece.columns, scratch.sums, piece.ld);
    }
}

// Asks for the first `size` elements of lines of memory that are `length` long and `step` apart.
template <class T>
SK_INLINE void ask_for_lines(const T* first, int64_t step, int64_t lines, int64_t length, int64_t size) {
    for (int64_t line = 0; line < lines && size > 0; ++line, first += step, size -= length)
        ask_for(first, least(length, size));
}

// Asks for the weights that this block will read first, while somebody else still computes a.
template <class T>
SK_APART void ask_for_weights(const Problem<T>& p, Along along) {
    const int64_t granules = divide_up(p.n, kGranule);
    const Range units = share(p.batches * granules);
    const int64_t batch = units.begin / granules, begin = units.begin % granules * kGranule;
    const Extent most = extent_of_pieces(p);
    const int64_t columns = least(most.columns, least(p.n - begin, (units.end - units.begin) * kGranule));
    const bool along_depth = along == Along::kDepth;
    const T* first = p.b + p.of_b.at(batch, 0, begin);
    const int64_t step = along_depth ? p.of_b.column : p.of_b.row;
    const int64_t lines = along_depth ? columns : least(most.depth, p.k), length = along_depth ? p.k : columns;
    const bool by_runs = along_depth ? by_runs_of_columns(p.m) : by_runs_of_rows(p.batches, p.m, bytes_of_b(p));
    const int64_t runs = by_runs && lines >= kRuns ? kRuns : 1;
    for (int64_t run = 0; run < runs; ++run, first += lines / runs * step)
        ask_for_lines(first, step, lines / runs, length, kEarly / int64_t(sizeof(T)) / runs);
}

// This block's share: columns, and batches of columns.
template <class T>
SK_APART void few_rows(const Problem<T>& p, Along along) {
    RowScratch scratch;
    const int64_t granules = divide_up(p.n, kGranule);
    const Range units = share(p.batches * granules);
    for (int64_t unit = units.begin; unit < units.end;) {
        const int64_t batch = unit / granules, first = unit % granules;
        const int64_t count = least(granules - first, units.end - unit);
        few_rows_of(p, along, batch, {first * kGranule, least((first + count) * kGranule, p.n)}, scratch);
        unit += count;
    }
}

}  // namespace
