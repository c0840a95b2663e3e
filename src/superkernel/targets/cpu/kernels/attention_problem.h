// attention_problem.h: the description of one attention call: sizes, strides, masks, where results go.
//
// The query heads that share a head of keys and values are one matrix: row r is query r / group of head r % group.
// Keys are processed in chunks whose bounds do not depend on the number of blocks. With splits > 1 (split-K over keys)
// split s processes the chunks s, s + splits, ..., and stores partial results for the op that merges them.
#pragma once

#include "attention_exp.h"
#include "problem.h"

namespace {

constexpr int64_t kMostSize = 512;  // of a head: attention.py refuses more
constexpr float kNothing = -__builtin_inff();

struct HeadStrides {
    int64_t batch, head, row, column;
    SK_INLINE int64_t at(int64_t batch_index, int64_t head_index, int64_t row_index) const {
        return batch_index * batch + head_index * head + row_index * row;
    }
};

enum class MaskKind : int64_t { kNone, kElement, kFloat, kBool };

// out = softmax(scale * query @ key^T + mask) @ value
template <class T>
struct Attention {
    const T *query, *key, *value;
    const void* mask;
    T* out;
    float *logsumexp, *partial;
    int64_t batches, heads, group, queries, keys, size, splits;  // `heads` are those of keys and values
    HeadStrides of_query, of_key, of_value, of_mask, of_out, of_logsumexp;
    MaskKind mask_kind;
    float scale;
    bool causal;

    SK_INLINE int64_t rows() const { return group * queries; }
};

// Some rows of one head of keys and values.
struct Rows {
    int64_t batch, head, first, count;
};

// The first key that no row attends to.
template <class T>
SK_INLINE int64_t key_end(const Attention<T>& p, const Rows& rows) {
    return p.causal ? least(p.keys, (rows.first + rows.count - 1) / p.group + 1) : p.keys;
}

SK_INLINE float mask_value(float value) { return value; }
SK_INLINE float mask_value(Bfloat16 value) { return to_float(value); }
SK_INLINE float mask_value(Float16 value) { return to_float(value); }
SK_INLINE float mask_value(bool takes_part) { return takes_part ? 0 : kNothing; }

template <class M>
SK_NOINLINE void mask_row(const M* __restrict from, int64_t step, int64_t count, float* __restrict to) {
    if (step == 1)
        for (int64_t i = 0; i < count; ++i) to[i] = mask_value(from[i]);
    else
        for (int64_t i = 0; i < count; ++i) to[i] = mask_value(from[i * step]);
}

// What is added to the scores of the keys from `key` on, row after row, `ld` apart. Returns how many of the `count`
// keys remain without those at the end that no row attends to: these keys and their values are not read.
template <class T>
SK_NOINLINE int64_t read_mask(const Attention<T>& p, const Rows& rows, int64_t key, int64_t count, float* to, int64_t ld) {
    int64_t end = 0;
    for (int64_t r = 0; r < rows.count; ++r, to += ld) {
        const int64_t query = (rows.first + r) / p.group, member = (rows.first + r) % p.group;
        if (r > 0 && member > 0 && p.of_mask.head == 0) {  // the row before has the same
            __builtin_memcpy(to, to - ld, count * sizeof(float));
            continue;
        }
        const int64_t at = p.of_mask.at(rows.batch, rows.head * p.group + member, query) + key * p.of_mask.column;
        if (p.mask_kind == MaskKind::kElement)
            mask_row(static_cast<const T*>(p.mask) + at, p.of_mask.column, count, to);
        else if (p.mask_kind == MaskKind::kFloat)
            mask_row(static_cast<const float*>(p.mask) + at, p.of_mask.column, count, to);
        else
            mask_row(static_cast<const bool*>(p.mask) + at, p.of_mask.column, count, to);
        int64_t last = count;
        while (last > end && to[last - 1] == kNothing) --last;
        end = last;
    }
    return end;
}

// Stores a finished row: `sums` / `total`; a row that attended to no key is 0 as in torch.
template <class T>
SK_NOINLINE void finish_row(const Attention<T>& p, const Rows& rows, int64_t r, const float* sums, float highest,
                         float total) {
    const int64_t row = rows.first + r, head = rows.head * p.group + row % p.group, query = row / p.group;
    T* __restrict out = p.out + p.of_out.at(rows.batch, head, query);
    const float factor = total == 0 ? 0 : 1 / total;
    const int64_t step = p.of_out.column;
    if (step == 1)
        for (int64_t i = 0; i < p.size; ++i) from_float(sums[i] * factor, out[i]);
    else
        for (int64_t i = 0; i < p.size; ++i) from_float(sums[i] * factor, out[i * step]);
    p.logsumexp[p.of_logsumexp.at(rows.batch, head, query)] = total == 0 ? 0 : highest + __builtin_logf(total);
}

// Where split `split` of a row leaves its highest score, its total, and its `size` sums.
template <class T>
SK_INLINE float* partial_of(const Attention<T>& p, int64_t batch, int64_t head, int64_t row, int64_t split) {
    return p.partial + (((batch * p.heads + head) * p.rows() + row) * p.splits + split) * (p.size + 2);
}

template <class T>
SK_NOINLINE void store_row(const Attention<T>& p, const Rows& rows, int64_t r, int64_t split, const float* sums,
                        float highest, float total) {
    if (p.splits == 1) return finish_row(p, rows, r, sums, highest, total);
    float* to = partial_of(p, rows.batch, rows.head, rows.first + r, split);
    to[0] = highest;
    to[1] = total;
    for (int64_t i = 0; i < p.size; ++i) to[2 + i] = sums[i];
}

}  // namespace
