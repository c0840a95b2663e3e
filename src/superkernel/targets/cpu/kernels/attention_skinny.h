// attention_skinny.h: attention of few query rows, bound by the bandwidth of keys and values: each is read once, in place.
#pragma once

#include "attention_problem.h"

namespace {

constexpr int64_t kSkinnyQueries = 8;                   // rows that share one pass over keys and values
constexpr int64_t kSkinnyKeys = 64;                     // keys of a chunk
constexpr int kQueryGroup = kRegisters == 32 ? 4 : 2;  // rows of a register tile

struct SkinnyScratch {
    alignas(64) float query[kSkinnyQueries * kMostSize];  // scaled; spans in the order of their parts, then zeros
    alignas(64) float sums[kSkinnyQueries * kMostSize];   // in the same order
    alignas(64) float ordered[kMostSize];
    alignas(64) float scores[kSkinnyQueries * kSkinnyKeys];
    alignas(64) float mask[kSkinnyQueries * kSkinnyKeys];
    float highest[kSkinnyQueries], total[kSkinnyQueries], fading[kSkinnyQueries];
};

// Keys and values of a chunk, and the next chunk, which is prefetched.
template <class T>
struct Chunk {
    const T *key, *value, *next_key;
    int64_t key_step, value_step, count, next_count, size, ld;
};

// total += spans of keys times those of queries
template <class T, int R, int C>
SK_INLINE void add_products(Vector (&total)[R][C], const Span<T> (&keys)[C], const float* query, int64_t ld) {
    SK_UNROLL
    for (int part = 0; part < kParts<T>; ++part) {
        Vector rows[R];
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            rows[r] = load(query + r * ld + part * kLanes);
            if (C > 1) pin_register(rows[r]);
        }
        SK_UNROLL
        for (int c = 0; c < C; ++c) {
            const Vector some = part_of(keys[c], part);
            SK_UNROLL
            for (int r = 0; r < R; ++r) total[r][c] = multiply_add(some, rows[r], total[r][c]);
        }
    }
}

// The scores of R rows, C keys at a time. Keys beyond the last are replaced by the last.
template <class T, int R, int C>
SK_NOINLINE void score(const Chunk<T>& chunk, int64_t row, SkinnyScratch& scratch) {
    const int64_t ld = chunk.ld, whole = chunk.size / kSpan<T> * kSpan<T>, rest = chunk.size - whole;
    const float* query = scratch.query + row * ld;
    for (int64_t j = 0; j < chunk.count; j += C) {
        const T* key[C];
        SK_UNROLL
        for (int c = 0; c < C; ++c) key[c] = chunk.key + least(j + c, chunk.count - 1) * chunk.key_step;
        Vector total[R][C] = {};
        Span<T> spans[C];
        for (int64_t i = 0; i < whole; i += kSpan<T>) {
            SK_UNROLL
            for (int c = 0; c < C; ++c) {
                spans[c] = load_span(key[c] + i);
                if (R > 1) pin_register(spans[c]);
            }
            add_products<T>(total, spans, query + i, ld);
        }
        if (rest > 0) {
            for (int c = 0; c < C; ++c) spans[c] = load_partial(key[c] + whole, rest);
            add_products<T>(total, spans, query + whole, ld);
        }
        if (row == 0)
            for (int64_t c = j; c < least(j + C, chunk.count); ++c)
                prefetch(chunk.value + c * chunk.value_step, chunk.size);
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            SK_UNROLL
            for (int c = 0; c < C; c += 4) {
                AnyQuad& to = *reinterpret_cast<AnyQuad*>(scratch.scores + (row + r) * kSkinnyKeys + j + c);
                to = sum_lanes(total[r][c], total[r][c + 1], total[r][c + 2], total[r][c + 3]);
            }
        }
    }
}

SK_INLINE float highest_of(Vector x) {
    float highest = x[0];
    for (int i = 1; i < kLanes; ++i) highest = x[i] > highest ? x[i] : highest;
    return highest;
}

SK_INLINE float sum_of(Vector x) {
    const Quad sum = sum_lanes(x, Vector{}, Vector{}, Vector{});
    return sum[0];
}

// Online softmax: scores become weights, and sums of earlier chunks are rescaled when the highest score rises.
SK_NOINLINE void weigh(int64_t rows, int64_t count, bool masked, SkinnyScratch& scratch) {
    for (int64_t r = 0; r < rows; ++r) {
        float* scores = scratch.scores + r * kSkinnyKeys;
        if (masked)
            for (int64_t j = 0; j < count; j += kLanes)
                store(scores + j, load(scores + j) + load(scratch.mask + r * kSkinnyKeys + j));
        for (int64_t j = count; j < kSkinnyKeys; ++j) scores[j] = kNothing;
        Vector most = broadcast(kNothing), sum = {};
        for (int64_t j = 0; j < kSkinnyKeys; j += kLanes) most = larger(load(scores + j), most);
        const float before = scratch.highest[r], here = highest_of(most), highest = here > before ? here : before;
        const float base = highest == kNothing ? 0 : highest;
        for (int64_t j = 0; j < kSkinnyKeys; j += kLanes) {
            const Vector weight = exponential(load(scores + j) - base);
            store(scores + j, weight);
            sum += weight;
        }
        scratch.highest[r] = highest;
        scratch.fading[r] = exponential(before - base);
        scratch.total[r] = multiply_add(scratch.total[r], scratch.fading[r], sum_of(sum));
    }
}

// R rows of weights times the values of a chunk, over Spans spans of columns, or over a part of one.
template <class T, int R, int Spans>
SK_NOINLINE void add_values(const Chunk<T>& chunk, int64_t row, int64_t column, int64_t width, SkinnyScratch& scratch) {
    constexpr int parts = kParts<T>, vectors = Spans * parts;
    Vector total[R][vectors];
    float* sums = scratch.sums + row * chunk.ld + column;
    const float* weights = scratch.scores + row * kSkinnyKeys;
    SK_UNROLL
    for (int r = 0; r < R; ++r) {
        SK_UNROLL
        for (int v = 0; v < vectors; ++v)
            total[r][v] = load(sums + r * chunk.ld + v * kLanes) * scratch.fading[row + r];
    }
    const T* value = chunk.value + column;
    for (int64_t j = 0; j < chunk.count; ++j, value += chunk.value_step) {
        Vector some[vectors];
        SK_UNROLL
        for (int s = 0; s < Spans; ++s) {
            const T* at = value + s * kSpan<T>;
            const Span<T> span = Spans > 1 || width == kSpan<T> ? load_span(at) : load_partial(at, width);
            SK_UNROLL
            for (int part = 0; part < parts; ++part) {
                some[s * parts + part] = part_of(span, part);
                if (R > 1) pin_register(some[s * parts + part]);
            }
        }
        if (row == 0 && j < chunk.next_count) prefetch(chunk.next_key + j * chunk.key_step + column, width);
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            const Vector weight = broadcast(weights[r * kSkinnyKeys + j]);
            SK_UNROLL
            for (int v = 0; v < vectors; ++v) total[r][v] = multiply_add(weight, some[v], total[r][v]);
        }
    }
    SK_UNROLL
    for (int r = 0; r < R; ++r) {
        SK_UNROLL
        for (int v = 0; v < vectors; ++v) store(sums + r * chunk.ld + v * kLanes, total[r][v]);
    }
}

// Calls step.template run<R>(row) for groups of R <= kTogether rows.
template <class Step>
SK_INLINE void in_groups(int64_t rows, const Step& step) {
    int64_t row = 0;
    for (; row + kQueryGroup <= rows; row += kQueryGroup) step.template run<kQueryGroup>(row);
    if (rows - row >= 2) {
        step.template run<2>(row);
        row += 2;
    }
    if (rows > row) step.template run<1>(row);
}

template <class T>
struct Score {
    const Chunk<T>& chunk;
    SkinnyScratch& scratch;
    template <int R>
    SK_INLINE void run(int64_t row) const {
        score<T, R, R == 1 && (kRegisters == 32 || kParts<T> == 1) ? 8 : 4>(chunk, row, scratch);
    }
};

template <class T>
struct AddValues {
    const Chunk<T>& chunk;
    SkinnyScratch& scratch;
    template <int R>
    SK_INLINE void run(int64_t row) const {
        constexpr int spans = 4 / kParts<T>;
        int64_t i = 0;
        for (; i + spans * kSpan<T> <= chunk.size; i += spans * kSpan<T>)
            add_values<T, R, spans>(chunk, row, i, spans * kSpan<T>, scratch);
        for (; i < chunk.size; i += kSpan<T>)
            add_values<T, R, 1>(chunk, row, i, least(kSpan<T>, chunk.size - i), scratch);
    }
};

// Adds the causal mask of these rows.
template <class T>
SK_INLINE void hide_later_keys(const Attention<T>& p, const Rows& rows, int64_t first, int64_t count,
                               SkinnyScratch& scratch, bool masked) {
    for (int64_t r = 0; r < rows.count; ++r) {
        float* mask = scratch.mask + r * kSkinnyKeys;
        for (int64_t j = 0; j < count; ++j) {
            const bool later = first + j > (rows.first + r) / p.group;
            mask[j] = later ? kNothing : masked ? mask[j] : 0;
        }
    }
}

template <class T>
SK_INLINE void take_queries(const Attention<T>& p, const Rows& rows, int64_t ld, SkinnyScratch& scratch) {
    for (int64_t r = 0; r < rows.count; ++r) {
        const int64_t row = rows.first + r;
        const T* query = p.query + p.of_query.at(rows.batch, rows.head * p.group + row % p.group, row / p.group);
        gather_rows<kParts<T>>(query, 0, 1, 1, p.size, scratch.query + r * ld, ld);
        for (int64_t i = 0; i < ld; ++i) {
            scratch.query[r * ld + i] *= p.scale;
            scratch.sums[r * ld + i] = 0;
        }
        scratch.highest[r] = kNothing;
        scratch.total[r] = 0;
    }
}

template <class T>
SK_NOINLINE void skinny_head(const Attention<T>& p, const Rows& rows, int64_t split, SkinnyScratch& scratch) {
    Chunk<T> chunk;
    chunk.size = p.size;
    chunk.ld = round_up(p.size, kSpan<T>);
    chunk.key_step = p.of_key.row;
    chunk.value_step = p.of_value.row;
    take_queries(p, rows, chunk.ld, scratch);
    const T* keys = p.key + p.of_key.at(rows.batch, rows.head, 0);
    const T* values = p.value + p.of_value.at(rows.batch, rows.head, 0);
    const int64_t end = key_end(p, rows), step = p.splits * kSkinnyKeys;
    for (int64_t first = split * kSkinnyKeys; first < end; first += step) {
        chunk.count = least(kSkinnyKeys, end - first);
        bool masked = p.mask_kind != MaskKind::kNone;
        if (masked) chunk.count = read_mask(p, rows, first, chunk.count, scratch.mask, kSkinnyKeys);
        if (chunk.count == 0) continue;
        if (p.causal) {
            hide_later_keys(p, rows, first, chunk.count, scratch, masked);
            masked = true;
        }
        chunk.key = keys + first * chunk.key_step;
        chunk.value = values + first * chunk.value_step;
        chunk.next_key = chunk.key + step * chunk.key_step;
        chunk.next_count = least(kSkinnyKeys, end - first - step);
        in_groups(rows.count, Score<T>{chunk, scratch});
        weigh(rows.count, chunk.count, masked, scratch);
        in_groups(rows.count, AddValues<T>{chunk, scratch});
    }
    for (int64_t r = 0; r < rows.count; ++r) {
        const float* sums = scratch.sums + r * chunk.ld;
        for (int64_t i = 0; i < p.size; ++i) {
            constexpr int parts = kParts<T>, span = kSpan<T>;
            scratch.ordered[i] = sums[i / span * span + i % parts * kLanes + i % span / parts];
        }
        store_row(p, rows, r, split, scratch.ordered, scratch.highest[r], scratch.total[r]);
    }
}

// This block's share: heads of keys and values, or splits of them.
template <class T>
SK_NOINLINE void skinny_attention(const Attention<T>& p) {
    SkinnyScratch scratch;
    const Range units = block_share(p.batches * p.heads * p.splits);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t pair = unit / p.splits;
        skinny_head(p, {pair / p.heads, pair % p.heads, 0, p.rows()}, unit % p.splits, scratch);
    }
}

}  // namespace
