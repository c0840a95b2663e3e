// skinny.h: skinny matmul (few rows of a), bound by the bandwidth of b: every element of b is read once, in place.
//
// The sum of an output element is always taken in the same order, wherever its tile begins, so that results do not
// depend on the number of blocks.
#pragma once

#include "streamed_rows.h"

namespace {

constexpr int64_t kSkinnyRows = 32;
constexpr int64_t kRowElements = 16384;  // elements of a that the scratch memory holds as floats
constexpr int64_t kRowSums = 4096;       // sums of a tile: half of an L1 cache
constexpr int64_t kGranule = 16;         // columns that blocks do not divide: a cache line
constexpr int64_t kGemvOuterRows = 8;     // rows of b per outer-product tile for one row of a (GEMV),
constexpr int64_t kSkinnyOuterRows = 16;   // and for several rows: sums are loaded and stored less often
constexpr int kTileGroup = kRegisters == 32 ? 6 : 2;  // rows of a register tile of four vectors
constexpr int64_t kPage = 4096;
constexpr int64_t kOuterPrefetchBytes = 16384;  // least prefetch distance of outer-product tiles
constexpr int64_t kDotPrefetchBytes = 8192;         // prefetch distance of dot tiles
constexpr int64_t kEarlyPrefetchBytes = 32768;        // bytes of b that are prefetched before a is available

// The direction in which b is contiguous.
enum class Along { kDepth, kColumns };

struct RowScratch {
    alignas(64) float a[kRowElements + kSkinnyRows * kLanes];
    alignas(64) float sums[kRowSums];
};

// Which of the `Width` cache lines of a tile one group of rows prefetches. The groups divide them, so that memory is busy
// while any group computes, not only the first.
struct PrefetchShare {
    int first, last;
};

// Rows in groups of at most kTileGroup, as equal as possible. Computed once: divisions take as long as a short tile.
struct RowGroups {
    int64_t count, sizes[kSkinnyRows];
    PrefetchShare shares[kSkinnyRows];

    SK_INLINE RowGroups(int64_t rows, int width) : count(divide_up(rows, kTileGroup)) {
        for (int64_t group = 0; group < count; ++group) {
            sizes[group] = divide_up(rows, count - group);
            shares[group] = {int(width * group / count), int(width * (group + 1) / count)};
            rows -= sizes[group];
        }
    }
};

// Calls tile.template run<R>(row, ahead) for all groups.
template <class Tile>
SK_INLINE void for_row_groups(const RowGroups& groups, const Tile& tile) {
    constexpr bool large = kTileGroup == 6;
    for (int64_t row = 0, group = 0; group < groups.count; ++group) {
        const int64_t size = groups.sizes[group];
        const PrefetchShare ahead = groups.shares[group];
        switch (size) {
            case 1: tile.template run<1>(row, ahead); break;
            case 2: tile.template run<2>(row, ahead); break;
            case 3: tile.template run<large ? 3 : 1>(row, ahead); break;
            case 4: tile.template run<large ? 4 : 1>(row, ahead); break;
            case 5: tile.template run<large ? 5 : 1>(row, ahead); break;
            default: tile.template run<kTileGroup>(row, ahead); break;
        }
        row += size;
    }
}

// Columns of b, read side by side. One pointer and one stride stay in registers; without the asm statement the compiler
// keeps two pointers per column (load and prefetch), more than there are registers.
template <class T>
struct Columns {
    const T* first;
    int64_t step;

    SK_INLINE const T* operator[](int c) const { return first + c * step; }
    SK_INLINE void advance(int64_t elements) {
        first += elements;
        asm("" : "+r"(first));
    }
};

// Dot products of R rows of a with four columns of b. The last tile has `existing` columns and repeats the last of them.
template <class T>
struct DotTile {
    static constexpr int C = 4;
    const Subproblem<T>& p;
    int64_t column;

    template <int R>
    SK_INLINE void run(int64_t row, PrefetchShare prefetched) const {
        Vector total[R][C] = {};
        const int64_t existing = p.columns - column;
        const T* b = p.b + column * p.ldb;
        const float* a = p.a + row * p.lda;
        const int64_t whole = existing < C ? 0 : p.depth / kSpan<T> * kSpan<T>;
        if (whole > 0) products<R>(a, b, whole, prefetched, total);
        for (int64_t i = whole; i < p.depth; i += kSpan<T>) {
            Span<T> weights[C];
            for (int c = 0; c < C; ++c)
                weights[c] = load_partial(b + least(c, existing - 1) * p.ldb + i, least(kSpan<T>, p.depth - i));
            add<R>(a + i, weights, total);
        }
        if (p.out != nullptr) return store_results<R>(row, existing, total);
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            AnyQuad& to = *reinterpret_cast<AnyQuad*>(p.sums + (row + r) * p.ld + column);
            to = to + sum_lanes(total[r][0], total[r][1], total[r][2], total[r][3]);
        }
    }

    template <int R>
    SK_INLINE void store_results(int64_t row, int64_t existing, const Vector (&total)[R][C]) const {
        float* out = p.out + row * p.out_row + column;
        const float* c = p.c == nullptr ? nullptr : p.c + row * p.c_row + column;
        SK_UNROLL
        for (int r = 0; r < R; ++r, out += p.out_row) {
            Quad sums = sum_lanes(total[r][0], total[r][1], total[r][2], total[r][3]);
            if (existing < C) {
                for (int64_t i = 0; i < existing; ++i) out[i] = c == nullptr ? sums[i] : sums[i] + c[r * p.c_row + i];
                continue;
            }
            if (c != nullptr) sums += *reinterpret_cast<const AnyQuad*>(c + r * p.c_row);
            *reinterpret_cast<AnyQuad*>(out) = sums;
        }
    }

    // Whole spans of whole tiles.
    template <int R>
    SK_INLINE void products(const float* a, const T* first, int64_t depth, PrefetchShare prefetched,
                            Vector (&total)[R][C]) const {
        // Prefetches whole tiles to the L2 cache: the hardware prefetcher starts anew in every column.
        const int64_t later = divide_up(kDotPrefetchBytes, C * p.depth * int64_t(sizeof(T))) * C;
        if (column + later < p.block_columns)  // not columns of another block
            return products<R, true>(a, first, depth, first + later * p.ldb, prefetched, total);
        products<R, false>(a, first, depth, first, prefetched, total);
    }

    template <int R, bool Prefetch>
    SK_INLINE void products(const float* a, const T* first, int64_t depth, const T* later, PrefetchShare prefetched,
                            Vector (&total)[R][C]) const {
        Columns<T> b{first, p.ldb}, ahead{later, p.ldb};
        for (const float* end = a + depth; a < end; a += kSpan<T>) {
            Span<T> weights[C];
            SK_UNROLL
            for (int c = 0; c < C; ++c) {
                weights[c] = load_span(b[c]);
                if (R > 1) pin_register(weights[c]);
                if (Prefetch && c >= prefetched.first && c < prefetched.last) __builtin_prefetch(ahead[c], 0, 2);
            }
            add<R>(a, weights, total);
            b.advance(kSpan<T>);
            if (Prefetch) ahead.advance(kSpan<T>);
        }
    }

    template <int R>
    SK_INLINE void add(const float* a, const Span<T> (&weights)[C], Vector (&total)[R][C]) const {
        SK_UNROLL
        for (int part = 0; part < kParts<T>; ++part) {
            Vector columns[C];
            SK_UNROLL
            for (int c = 0; c < C; ++c) columns[c] = part_of(weights[c], part);
            SK_UNROLL
            for (int r = 0; r < R; ++r) {  // one row at a time: the sums leave no registers for more
                Vector some = load(a + r * p.lda + part * kLanes);
                pin_register(some);
                SK_UNROLL
                for (int c = 0; c < C; ++c) total[r][c] = multiply_add(columns[c], some, total[r][c]);
            }
        }
    }
};

// b is contiguous along k: dot products.
template <class T>
SK_NOINLINE void add_dots(const Subproblem<T>& p) {
    const int64_t done = streams_columns(p.rows) ? add_streamed_columns(p) : 0;
    const RowGroups groups(p.rows, DotTile<T>::C);
    for (int64_t j = done; j < p.columns; j += DotTile<T>::C) for_row_groups(groups, DotTile<T>{p, j});
}

// R rows of a times the rows [depth, depth_end) of b, over Spans spans of columns, or over a part of one.
template <class T, int Spans>
struct OuterTile {
    const Subproblem<T>& p;
    int64_t depth, depth_end, column, width, ahead;

    template <int R>
    SK_INLINE void run(int64_t row, PrefetchShare prefetched) const {
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
                const Span<T> span = Spans > 1 || width == kSpan<T> ? load_span(at) : load_partial(at, width);
                if (s >= prefetched.first && s < prefetched.last) __builtin_prefetch(at + ahead, 0, 2);
                SK_UNROLL
                for (int part = 0; part < parts; ++part) {
                    weights[s * parts + part] = part_of(span, part);
                    if (R > 1) pin_register(weights[s * parts + part]);
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

// b is contiguous along n: outer products of `streams` rows of b at a time, from `first` on; the sums stay in the cache.
template <class T, int Spans>
SK_INLINE void add_outer_products_by(const Subproblem<T>& p, int64_t first, int64_t streams) {
    const int64_t rows_ahead = p.ldb == 0 ? 1 : divide_up(kOuterPrefetchBytes, p.ldb * int64_t(sizeof(T)));
    const int64_t ahead = (rows_ahead > streams ? rows_ahead : streams) * p.ldb;
    const RowGroups groups(p.rows, Spans), narrow(p.rows, 1);
    for (int64_t i = first; i < p.depth; i += streams) {
        const int64_t end = least(i + streams, p.depth);
        int64_t j = 0;
        for (; j + Spans * kSpan<T> <= p.columns; j += Spans * kSpan<T>)
            for_row_groups(groups, OuterTile<T, Spans>{p, i, end, j, Spans * kSpan<T>, ahead});
        for (; j < p.columns; j += kSpan<T>)
            for_row_groups(narrow, OuterTile<T, 1>{p, i, end, j, least(kSpan<T>, p.columns - j), ahead});
    }
}

// GEMV needs few sums at a time and is bound by loads. Long rows of b lie in different pages: reading more of them side
// by side keeps the memory busier. Short rows, which the caches may hold, are faster with fewer.
template <class T>
SK_NOINLINE void add_outer_products(const Subproblem<T>& p) {
    const int64_t done = streams_rows(p.batches, p.rows, p.b_bytes) ? add_streamed_rows(p) : 0;
    const bool long_rows = p.ldb * int64_t(sizeof(T)) >= kPage;
    if (p.rows == 1 && long_rows)
        add_outer_products_by<T, 2 / kParts<T>>(p, done, kGemvOuterRows);
    else
        add_outer_products_by<T, 4 / kParts<T>>(p, done, p.rows == 1 ? kGemvOuterRows / 2 : kSkinnyOuterRows);
}

// Brings the sums of add_outer_products from the order of span parts to the order of columns.
template <class T>
SK_INLINE void order_columns(float* sums, int64_t ld, int64_t rows) {
    if (kParts<T> == 1) return;
    for (int64_t i = 0; i < rows * ld; i += 2 * kLanes) {
        const Vector even = load(sums + i), odd = load(sums + i + kLanes);
        store(sums + i, interleave_low(even, odd));
        store(sums + i + kLanes, interleave_high(even, odd));
    }
}

// The part of a problem that fits the scratch memory.
struct SubproblemSize {
    int64_t columns, depth;
};

template <class T>
SK_INLINE SubproblemSize subproblem_size(const Problem<T>& p) {
    constexpr int64_t unit = 2 * kLanes;
    return {kRowSums / p.m / unit * unit, least(kRowElements / p.m / unit * unit, round_up(p.k, unit))};
}

template <class T>
SK_INLINE int64_t bytes_of_b(const Problem<T>& p) {
    return p.batches * p.n * p.k * int64_t(sizeof(T));
}

// Rows of a that dot products can read where they are: floats, whole spans, and not all in the same cache sets.
template <class T>
SK_INLINE const float* rows_in_place(const Problem<T>&, const T*) {
    return nullptr;
}
SK_INLINE const float* rows_in_place(const Problem<float>& p, const float* a) {
    const bool apart = p.m <= 4 || p.of_a.row * int64_t(sizeof(float)) % kPage != 0;
    return p.of_a.column == 1 && p.k % kLanes == 0 && apart ? a : nullptr;
}

// Whether sums of dot products are results, but for an added c, and can be stored from registers.
template <class T>
SK_INLINE bool stores_directly(const Problem<T>&, int64_t) {
    return false;
}
SK_INLINE bool stores_directly(const Problem<float>& p, int64_t most_depth) {
    const bool plain = p.alpha == 1 && (p.c == nullptr || (p.beta == 1 && p.of_c.column == 1));
    return plain && p.of_out.column == 1 && p.k <= most_depth && !streams_columns(p.m);
}
template <class T>
SK_INLINE void store_directly(const Problem<T>&, int64_t, int64_t, Subproblem<T>&) {}
SK_INLINE void store_directly(const Problem<float>& p, int64_t batch, int64_t column, Subproblem<float>& sub) {
    sub.out = p.out + p.of_out.at(batch, 0, column);
    sub.c = p.c == nullptr ? nullptr : p.c + p.of_c.at(batch, 0, column);
    sub.out_row = p.of_out.row;
    sub.c_row = p.of_c.row;
}

// Columns [begin, end) of one batch.
template <class T>
SK_NOINLINE void skinny_columns(const Problem<T>& p, Along along, int64_t batch, Range columns, RowScratch& scratch) {
    const SubproblemSize most = subproblem_size(p);
    const bool direct = along == Along::kDepth && stores_directly(p, most.depth);
    for (int64_t begin = columns.begin; begin < columns.end; begin += most.columns) {
        Subproblem<T> sub;
        sub.rows = p.m;
        sub.columns = least(most.columns, columns.end - begin);
        sub.block_columns = columns.end - begin;
        sub.batches = p.batches;
        sub.b_bytes = bytes_of_b(p);
        sub.a = scratch.a;
        sub.sums = scratch.sums;
        sub.lda = most.depth + kLanes;  // padded, so that rows do not map to the same cache sets
        sub.ld = round_up(sub.columns, 2 * kLanes);
        sub.ldb = along == Along::kDepth ? p.of_b.column : p.of_b.row;
        if (direct)
            store_directly(p, batch, begin, sub);
        else
            for (int64_t i = 0; i < sub.rows * sub.ld; i += kLanes) store(scratch.sums + i, Vector{});
        for (int64_t i = 0; i < p.k; i += most.depth) {
            sub.depth = least(most.depth, p.k - i);
            sub.b = p.b + p.of_b.at(batch, i, begin);
            const T* a = p.a + p.of_a.at(batch, 0, i);
            if (along == Along::kDepth) {
                const float* const in_place = rows_in_place(p, a);
                if (in_place == nullptr)
                    gather_rows<kParts<T>>(a, p.of_a.row, p.of_a.column, p.m, sub.depth, scratch.a, sub.lda);
                else
                    sub.a = in_place, sub.lda = p.of_a.row;
                add_dots(sub);
            } else {
                gather_rows<1>(a, p.of_a.row, p.of_a.column, p.m, sub.depth, scratch.a, sub.lda);
                add_outer_products(sub);
            }
        }
        if (along == Along::kColumns) order_columns<T>(scratch.sums, sub.ld, p.m);
        if (!direct) finish(p, batch, 0, begin, p.m, sub.columns, scratch.sums, sub.ld);
    }
}

// Prefetches the first `size` elements of rows that are `length` long and `step` asub.
template <class T>
SK_INLINE void prefetch_rows(const T* first, int64_t step, int64_t rows, int64_t length, int64_t size) {
    for (int64_t row = 0; row < rows && size > 0; ++row, first += step, size -= length)
        prefetch(first, least(length, size));
}

// Prefetches the weights that this block reads first, while other cores still compute a.
template <class T>
SK_NOINLINE void prefetch_weights(const Problem<T>& p, Along along) {
    const int64_t granules = divide_up(p.n, kGranule);
    const Range units = block_share(p.batches * granules);
    const int64_t batch = units.begin / granules, begin = units.begin % granules * kGranule;
    const SubproblemSize most = subproblem_size(p);
    const int64_t columns = least(most.columns, least(p.n - begin, (units.end - units.begin) * kGranule));
    const bool along_depth = along == Along::kDepth;
    const T* first = p.b + p.of_b.at(batch, 0, begin);
    const int64_t step = along_depth ? p.of_b.column : p.of_b.row;
    const int64_t rows = along_depth ? columns : least(most.depth, p.k), length = along_depth ? p.k : columns;
    const bool streamed = along_depth ? streams_columns(p.m) : streams_rows(p.batches, p.m, bytes_of_b(p));
    const int64_t streams = streamed && rows >= kStreams ? kStreams : 1;
    for (int64_t stream = 0; stream < streams; ++stream, first += rows / streams * step)
        prefetch_rows(first, step, rows / streams, length, kEarlyPrefetchBytes / int64_t(sizeof(T)) / streams);
}

// This block's share: columns, and batches of columns.
template <class T>
SK_NOINLINE void skinny_matmul(const Problem<T>& p, Along along) {
    RowScratch scratch;
    const int64_t granules = divide_up(p.n, kGranule);
    const Range units = block_share(p.batches * granules);
    for (int64_t unit = units.begin; unit < units.end;) {
        const int64_t batch = unit / granules, first = unit % granules;
        const int64_t count = least(granules - first, units.end - unit);
        skinny_columns(p, along, batch, {first * kGranule, least((first + count) * kGranule, p.n)}, scratch);
        unit += count;
    }
}

}  // namespace
