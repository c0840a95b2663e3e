// attention.cpp: out = softmax(scale * query @ key^T + mask) @ value, and the logarithm of the sum that it divides by.
//
// Compiled with SK_ATTENTION_FLOAT32, _BFLOAT16 or _FLOAT16 defined: one object per element type, when it is needed.
// The last dimension of query, key and value is contiguous, everything else has any strides. Sums are floats whatever
// the element type. The order of sums follows from the sizes, never from the number of blocks.
#include "attention_skinny.h"
#include "attention_tiles.h"

namespace {

template <class T>
SK_NOINLINE void attend(const Attention<T>& p) {
    if (p.batches == 0 || p.heads == 0 || p.rows() == 0) return;
    if (p.rows() <= kSkinnyQueries) return skinny_attention(p);
    attention_tiles(p);
}

// The splits of each row, one after the other.
template <class T>
SK_NOINLINE void merge(const Attention<T>& p) {
    alignas(64) float sums[kMostSize];
    const Range units = block_share(p.batches * p.heads * p.rows());
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t row = unit % p.rows(), pair = unit / p.rows(), batch = pair / p.heads, head = pair % p.heads;
        const float* parts = partial_of(p, batch, head, row, 0);
        float highest = kNothing, total = 0;
        for (int64_t s = 0; s < p.splits; ++s) {
            const float here = parts[s * (p.size + 2)];
            highest = here > highest ? here : highest;
        }
        const float base = highest == kNothing ? 0 : highest;
        for (int64_t i = 0; i < p.size; ++i) sums[i] = 0;
        for (int64_t s = 0; s < p.splits; ++s) {
            const float* part = parts + s * (p.size + 2);
            const float factor = exponential(part[0] - base);
            total = multiply_add(part[1], factor, total);
            for (int64_t i = 0; i < p.size; ++i) sums[i] = multiply_add(part[2 + i], factor, sums[i]);
        }
        finish_row(p, {batch, head, row, 1}, 0, sums, highest, total);
    }
}

}  // namespace

#define SK_SIZES                                                                                                  \
    int64_t batches, int64_t heads, int64_t group, int64_t queries, int64_t keys, int64_t size, int64_t splits
#define SK_INPUTS(T)                                                                                              \
    const T *query, const T *key, const T *value, SK_STRIDES(query), SK_STRIDES(key), SK_STRIDES(value),          \
        float scale, bool causal
#define SK_STRIDES(of) int64_t of##_batch, int64_t of##_head, int64_t of##_row
#define SK_STRIDES_OF(of) of##_batch, of##_head, of##_row
#define SK_RESULTS(T)                                                                                             \
    T *out, float *logsumexp, SK_STRIDES(out), int64_t out_column, SK_STRIDES(logsumexp)
#define SK_MASK const void *mask, SK_STRIDES(mask), int64_t mask_column, int64_t mask_kind

#define SK_SET_SIZES(T)                                                                                           \
    Attention<T> p = {};                                                                                          \
    p.batches = batches, p.heads = heads, p.group = group, p.queries = queries, p.keys = keys, p.size = size,     \
    p.splits = splits
#define SK_SET_INPUTS                                                                                             \
    p.query = query, p.key = key, p.value = value, p.scale = scale, p.causal = causal,                            \
    p.of_query = {SK_STRIDES_OF(query), 1}, p.of_key = {SK_STRIDES_OF(key), 1}, p.of_value = {SK_STRIDES_OF(value), 1}
#define SK_SET_RESULTS                                                                                            \
    p.out = out, p.logsumexp = logsumexp, p.of_out = {SK_STRIDES_OF(out), out_column},                            \
    p.of_logsumexp = {SK_STRIDES_OF(logsumexp), 0}
#define SK_SET_MASK                                                                                               \
    p.mask = mask, p.of_mask = {SK_STRIDES_OF(mask), mask_column}, p.mask_kind = MaskKind(mask_kind)

// The whole, or its splits; with a mask, or without; and what makes a whole of the splits.
#define SK_ATTENTION(name, T)                                                                                     \
    extern "C" void name(SK_SIZES, SK_INPUTS(T), SK_RESULTS(T)) {                                                 \
        SK_SET_SIZES(T);                                                                                          \
        SK_SET_INPUTS;                                                                                            \
        SK_SET_RESULTS;                                                                                           \
        attend(p);                                                                                                \
    }                                                                                                             \
    extern "C" void name##_masked(SK_SIZES, SK_INPUTS(T), SK_RESULTS(T), SK_MASK) {                               \
        SK_SET_SIZES(T);                                                                                          \
        SK_SET_INPUTS;                                                                                            \
        SK_SET_RESULTS;                                                                                           \
        SK_SET_MASK;                                                                                              \
        attend(p);                                                                                                \
    }                                                                                                             \
    extern "C" void name##_split(SK_SIZES, SK_INPUTS(T), float* partial) {                                        \
        SK_SET_SIZES(T);                                                                                          \
        SK_SET_INPUTS;                                                                                            \
        p.partial = partial;                                                                                      \
        attend(p);                                                                                                \
    }                                                                                                             \
    extern "C" void name##_split_masked(SK_SIZES, SK_INPUTS(T), float* partial, SK_MASK) {                        \
        SK_SET_SIZES(T);                                                                                          \
        SK_SET_INPUTS;                                                                                            \
        SK_SET_MASK;                                                                                              \
        p.partial = partial;                                                                                      \
        attend(p);                                                                                                \
    }                                                                                                             \
    extern "C" void name##_merge(SK_SIZES, const float* partial, SK_RESULTS(T)) {                                 \
        SK_SET_SIZES(T);                                                                                          \
        SK_SET_RESULTS;                                                                                           \
        p.partial = const_cast<float*>(partial);                                                                  \
        merge(p);                                                                                                 \
    }

#ifdef SK_ATTENTION_FLOAT32
SK_ATTENTION(attention_float32, float)
#endif
#ifdef SK_ATTENTION_BFLOAT16
SK_ATTENTION(attention_bfloat16, Bfloat16)
#endif
#ifdef SK_ATTENTION_FLOAT16
SK_ATTENTION(attention_float16, Float16)
#endif
