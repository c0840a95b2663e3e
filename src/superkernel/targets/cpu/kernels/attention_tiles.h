// attention_tiles.h: attention of many query rows: register tiles of rows by keys.
//
// Data is transposed: a vector holds one number of kLanes rows, so that softmax needs no sums over lanes, and keys and
// values are broadcast in the order in which they lie in memory.
#pragma once

#include "attention_problem.h"
#include "tiles.h"

namespace {

constexpr int64_t kLines = 64;                   // rows of a tile
constexpr int64_t kTileKeys = 96;                // keys of a tile
constexpr int64_t kRoundedSize = kMostSize + 16;  // to whole vectors and register tiles
static_assert(kTileKeys % kTileRows == 0 && kTileKeys % kLanes == 0 && kLines % kLanes == 0, "tiles are whole");

struct AttentionScratch {
    alignas(64) float query[kMostSize * kLines];          // scaled; [size][kLines]
    alignas(64) float sums[kRoundedSize * kLines];        // [size][kLines]
    alignas(64) float scores[kTileKeys * kLines];         // [keys][kLines]
    alignas(64) float factors[kTileKeys * kRoundedSize];  // keys, then values
    alignas(64) float lines[kLines * kRoundedSize];       // row after row: queries, masks, results
    alignas(64) float highest[kLines], total[kLines], fading[kLines], query_of[kLines];
};

// Rows rows of: scores[key] = sum over i of keys[key][i] * by[i], or sums[i] = fading * sums[i] + sum over keys of
// values[key][i] * by[key]. Each of these is a line of kLines numbers, of which Vectors vectors are computed.
template <int Vectors, bool Values, int Rows = kTileRows>
SK_NOINLINE void attention_tile(const float* factors, int64_t ld, const float* by, int64_t depth, const float* fading,
                             float* to) {
    const int64_t row_step = Values ? 1 : ld, depth_step = Values ? ld : 1;
    Vector total[Rows][Vectors] = {};
    if (Values) {
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            const Vector fade = load(fading + v * kLanes);
            SK_UNROLL
            for (int r = 0; r < Rows; ++r) total[r][v] = load(to + r * kLines + v * kLanes) * fade;
        }
    }
    for (int64_t i = 0; i < depth; ++i, factors += depth_step, by += kLines) {
        Vector columns[Vectors];
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            columns[v] = load(by + v * kLanes);
            pin_register(columns[v]);
        }
        SK_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const Vector factor = broadcast(factors[r * row_step]);
            SK_UNROLL
            for (int v = 0; v < Vectors; ++v) total[r][v] = multiply_add(factor, columns[v], total[r][v]);
        }
    }
    SK_UNROLL
    for (int r = 0; r < Rows; ++r) {
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) store(to + r * kLines + v * kLanes, total[r][v]);
    }
}

// The same for `rows` rows of the result, and all `lines` lines.
template <bool Values>
SK_INLINE void multiply(const float* factors, int64_t ld, const float* by, int64_t depth, const float* fading,
                        float* to, int64_t rows, int64_t lines) {
    for (int64_t line = 0; line < lines; line += kTileColumns) {
        const int64_t vectors = divide_up(least(kTileColumns, lines - line), kLanes);
        for (int64_t r = 0; r < rows; r += kTileRows) {
            const float* some = factors + r * (Values ? 1 : ld);
            float* at = to + r * kLines + line;
            if (vectors == 1 && rows - r >= 2 * kTileRows && kRegisters == 32) {  // more sums hide the latency
                attention_tile<1, Values, 2 * kTileRows>(some, ld, by + line, depth, fading + line, at);
                r += kTileRows;
            } else if (vectors == 1)
                attention_tile<1, Values>(some, ld, by + line, depth, fading + line, at);
            else if (vectors == 2)
                attention_tile<2, Values>(some, ld, by + line, depth, fading + line, at);
            else if (vectors == 3)
                attention_tile<kTileVectors == 4 ? 3 : 1, Values>(some, ld, by + line, depth, fading + line, at);
            else
                attention_tile<kTileVectors, Values>(some, ld, by + line, depth, fading + line, at);
        }
    }
}

// Rows of keys or values as floats, `ld` apart; rows and columns are filled up with zeros.
template <class T>
SK_NOINLINE void copy_rows(const T* from, int64_t step, int64_t rows, int64_t size, float* to, int64_t all_rows,
                        int64_t ld) {
    for (int64_t r = 0; r < rows; ++r, from += step, to += ld) {
        for (int64_t i = 0; i < size; ++i) to[i] = to_float(from[i]);
        for (int64_t i = size; i < ld; ++i) to[i] = 0;
    }
    for (int64_t i = 0; i < (all_rows - rows) * ld; ++i) to[i] = 0;
}

// to[j][i] = factor * from[i][j], or += from[i][j], in blocks of kLanes x kLanes. Rows from `last` on repeat row `last`.
template <bool Add>
SK_NOINLINE void turn(const float* from, int64_t ld_from, int64_t rows, int64_t columns, float* to, int64_t ld_to,
                   float factor, int64_t last = INT64_MAX) {
    for (int64_t i = 0; i < rows; i += kLanes) {
        for (int64_t j = 0; j < columns; j += kLanes) {
            Vector block[kLanes];
            SK_UNROLL
            for (int r = 0; r < kLanes; ++r) block[r] = load(from + least(i + r, last) * ld_from + j);
            transpose(block);
            SK_UNROLL
            for (int r = 0; r < kLanes; ++r) {
                float* at = to + (j + r) * ld_to + i;
                store(at, Add ? load(at) + block[r] : block[r] * factor);
            }
        }
    }
}

// Queries that need no copy: floats, whole vectors, at equal distances.
template <class T>
SK_INLINE const float* queries_in_place(const Attention<T>&, const Rows&) {
    return nullptr;
}
SK_INLINE const float* queries_in_place(const Attention<float>& p, const Rows& rows) {
    if (p.group != 1 || p.size % kLanes != 0) return nullptr;
    return p.query + p.of_query.at(rows.batch, rows.head, rows.first);
}

template <class T>
SK_NOINLINE void take_query_lines(const Attention<T>& p, const Rows& rows, int64_t lines, AttentionScratch& scratch) {
    const int64_t ld = round_up(p.size, kLanes);
    const float* const in_place = queries_in_place(p, rows);
    for (int64_t r = 0; r < lines; ++r) {
        const int64_t row = rows.first + least(r, rows.count - 1);
        const T* query = p.query + p.of_query.at(rows.batch, rows.head * p.group + row % p.group, row / p.group);
        if (in_place == nullptr) copy_rows(query, 0, 1, p.size, scratch.lines + r * ld, 1, ld);
        scratch.query_of[r] = float(row / p.group);
        scratch.highest[r] = kNothing;
        scratch.total[r] = 0;
    }
    if (in_place == nullptr)
        turn<false>(scratch.lines, ld, lines, ld, scratch.query, kLines, p.scale);
    else
        turn<false>(in_place, p.of_query.row, lines, ld, scratch.query, kLines, p.scale, rows.count - 1);
    for (int64_t i = 0; i < p.size + kRoundedSize - kMostSize; ++i)
        for (int64_t line = 0; line < lines; line += kLanes) store(scratch.sums + i * kLines + line, Vector{});
}

// Scores of the keys that come after a row's query are hidden.
SK_INLINE void hide_later_lines(int64_t first, int64_t count, int64_t lines, AttentionScratch& scratch) {
    for (int64_t j = 0; j < count; ++j) {
        for (int64_t line = 0; line < lines; line += kLanes) {
            float* at = scratch.scores + j * kLines + line;
            const Vector later = broadcast(float(first + j));
            store(at, later > load(scratch.query_of + line) ? broadcast(kNothing) : load(at));
        }
    }
}

// Online softmax: scores become weights, and sums of earlier tiles are rescaled when the highest score rises.
SK_NOINLINE void weigh_lines(int64_t count, int64_t lines, AttentionScratch& scratch) {
    for (int64_t line = 0; line < lines; line += kLanes) {
        float* scores = scratch.scores + line;
        const Vector before = load(scratch.highest + line);
        Vector most = before, other = before;
        int64_t j = 0;
        for (; j + 2 <= count; j += 2) {
            most = larger(load(scores + j * kLines), most);
            other = larger(load(scores + (j + 1) * kLines), other);
        }
        if (j < count) most = larger(load(scores + j * kLines), most);
        most = larger(other, most);
        const Vector base = most == kNothing ? Vector{} : most;
        const Vector fading = exponential(before - base);
        Vector sum = load(scratch.total + line) * fading;
        for (j = 0; j < count; ++j) {
            const Vector weight = exponential(load(scores + j * kLines) - base);
            store(scores + j * kLines, weight);
            sum += weight;
        }
        store(scratch.highest + line, most);
        store(scratch.fading + line, fading);
        store(scratch.total + line, sum);
    }
}

// Keys or values as floats.
struct Factors {
    const float* first;
    int64_t ld;
};

// Copies them; floats whose rows and columns need not be filled up are read where they are.
template <class T>
SK_INLINE Factors factors_of(const T* from, int64_t step, int64_t rows, int64_t size, int64_t all_rows, int64_t ld,
                             float* to) {
    copy_rows(from, step, rows, size, to, all_rows, ld);
    return {to, ld};
}
SK_INLINE Factors factors_of(const float* from, int64_t step, int64_t rows, int64_t size, int64_t all_rows, int64_t ld,
                             float* to) {
    if (rows == all_rows && size == ld && rows <= 2 * kTileRows) return {from, step};  // used too few times to copy
    return factors_of<float>(from, step, rows, size, all_rows, ld, to);
}

template <class T>
SK_NOINLINE void attention_tile_of(const Attention<T>& p, const Rows& rows, int64_t split, AttentionScratch& scratch) {
    const int64_t lines = round_up(rows.count, kLanes), value_ld = round_up(p.size, kTileRows);
    take_query_lines(p, rows, lines, scratch);
    const T* keys = p.key + p.of_key.at(rows.batch, rows.head, 0);
    const T* values = p.value + p.of_value.at(rows.batch, rows.head, 0);
    const int64_t end = key_end(p, rows), step = p.splits * kTileKeys;
    for (int64_t first = split * kTileKeys; first < end; first += step) {
        int64_t count = least(kTileKeys, end - first);
        const bool masked = p.mask_kind != MaskKind::kNone;
        if (masked) {
            count = read_mask(p, rows, first, count, scratch.lines, kTileKeys);
            if (count == 0) continue;
        }
        const int64_t whole = round_up(count, kTileRows);
        const Factors some_keys =
            factors_of(keys + first * p.of_key.row, p.of_key.row, count, p.size, whole, p.size, scratch.factors);
        multiply<false>(some_keys.first, some_keys.ld, scratch.query, p.size, nullptr, scratch.scores, whole, lines);
        if (masked) turn<true>(scratch.lines, kTileKeys, lines, count, scratch.scores, kLines, 1);
        if (p.causal && first + count - 1 > rows.first / p.group) hide_later_lines(first, count, lines, scratch);
        weigh_lines(count, lines, scratch);
        const Factors some_values =
            factors_of(values + first * p.of_value.row, p.of_value.row, count, p.size, count, value_ld, scratch.factors);
        multiply<true>(some_values.first, some_values.ld, scratch.scores, count, scratch.fading, scratch.sums, value_ld,
                       lines);
    }
    const int64_t ld = round_up(p.size, kLanes);
    turn<false>(scratch.sums, kLines, ld, lines, scratch.lines, ld, 1);
    for (int64_t r = 0; r < rows.count; ++r)
        store_row(p, rows, r, split, scratch.lines + r * ld, scratch.highest[r], scratch.total[r]);
}

// This block's share of the tiles of rows. Where later rows look at more keys, a late tile follows an early one.
template <class T>
SK_NOINLINE void attention_tiles(const Attention<T>& p) {
    AttentionScratch scratch;
    const int64_t rows = p.rows();
    const int64_t each = round_up(divide_up(rows, divide_up(rows, kLines)), kLanes), tiles = divide_up(rows, each);
    const Range units = block_share(p.batches * p.heads * tiles * p.splits);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t place = unit / p.splits % tiles, pair = unit / p.splits / tiles;
        const int64_t tile = place % 2 ? tiles - 1 - place / 2 : place / 2;
        const Rows some = {pair / p.heads, pair % p.heads, tile * each, least(each, rows - tile * each)};
        attention_tile_of(p, some, unit % p.splits, scratch);
    }
}

}  // namespace
