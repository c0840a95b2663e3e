// int4_weights.h: int4 weights as torch packs them for the CPU: where a weight lies, and its scale and zero point.
//
// Columns are packed by blocks. A block has k rows of size / 2 bytes, and each byte has two columns. Blocks of full size
// may be packed in halves: byte i has the columns i (low bits) and i + size / 2. Other blocks are packed in pairs: byte i
// has the columns 2 i and 2 i + 1. A weight q stands for (q - 8) * scale + zero.
#pragma once

#include "weight_only.h"

namespace {

constexpr int64_t kMostBlockColumns = 64;

struct Int4Layout {
    int64_t columns, depth;  // n, k
    int64_t block;           // columns of a full block
    bool halves;

    SK_INLINE int64_t size(int64_t index) const { return least(block, columns - index * block); }
    SK_INLINE int64_t blocks() const { return divide_up(columns, block); }
    SK_INLINE bool in_halves(int64_t index) const { return halves && size(index) == block; }
    // The bytes of a block at a row.
    SK_INLINE int64_t at(int64_t index, int64_t row) const { return index * block / 2 * depth + row * (size(index) / 2); }
    SK_INLINE int64_t low_column(int64_t index, int64_t byte) const { return in_halves(index) ? byte : 2 * byte; }
    SK_INLINE int64_t high_column(int64_t index, int64_t byte) const {
        return in_halves(index) ? byte + block / 2 : 2 * byte + 1;
    }
};

// Packed weights; scale and zero point of each group of rows and column lie side by side: scales[group][column][2].
template <class T>
struct Int4Weights {
    const uint8_t* packed;
    const T* scales;
    int64_t group;  // rows
    Int4Layout layout;

    SK_INLINE const T* scales_of(int64_t group_index, int64_t column) const {
        return scales + (group_index * layout.columns + column) * 2;
    }

    // Floats for the tiles of weight_only.h; `column` begins a block.
    SK_NOINLINE void pack(int64_t column, int64_t columns, int64_t k, int64_t depth, float* panels) const {
        for (int64_t index = column / layout.block; index * layout.block < column + columns; ++index)
            pack_block(index, index * layout.block - column, k, depth, panels);
    }
    SK_INLINE void scale(int64_t, int64_t, float*) const {}  // packed weights are scaled

    SK_NOINLINE void pack_block(int64_t index, int64_t panel_column, int64_t k, int64_t depth, float* panels) const {
        const int64_t bytes = layout.size(index) / 2;
        float scale[2][kMostBlockColumns / 2], zero[2][kMostBlockColumns / 2];
        float* to[2][kMostBlockColumns / 2];
        for (int64_t byte = 0; byte < bytes; ++byte) {
            const int64_t places[] = {layout.low_column(index, byte) + panel_column,
                                      layout.high_column(index, byte) + panel_column};
            for (int half = 0; half < 2; ++half)
                to[half][byte] = panels + places[half] / kTileColumns * kTileColumns * kChunk + places[half] % kTileColumns;
        }
        const uint8_t* from = packed + layout.at(index, k);
        for (int64_t row = 0; row < depth; ++row, from += bytes) {
            if (row == 0 || (k + row) % group == 0) read_scales(index, (k + row) / group, scale, zero);
            for (int64_t byte = 0; byte < bytes; ++byte) {
                to[0][byte][row * kTileColumns] = float((from[byte] & 15) - 8) * scale[0][byte] + zero[0][byte];
                to[1][byte][row * kTileColumns] = float((from[byte] >> 4) - 8) * scale[1][byte] + zero[1][byte];
            }
        }
    }

    // Of the low and of the high columns of each byte of a block.
    SK_NOINLINE void read_scales(int64_t index, int64_t group_index, float (&scale)[2][kMostBlockColumns / 2],
                                 float (&zero)[2][kMostBlockColumns / 2]) const {
        const T* pairs = scales_of(group_index, index * layout.block);
        for (int64_t byte = 0; byte < layout.size(index) / 2; ++byte) {
            const T *low = pairs + 2 * layout.low_column(index, byte), *high = pairs + 2 * layout.high_column(index, byte);
            scale[0][byte] = to_float(low[0]), zero[0][byte] = to_float(low[1]);
            scale[1][byte] = to_float(high[0]), zero[1][byte] = to_float(high[1]);
        }
    }
};

// Scales and zero points of kLanes columns.
template <class T>
SK_INLINE void load_scales(const T* pairs, Vector& scale, Vector& zero) {
    for (int i = 0; i < kLanes; ++i) scale[i] = to_float(pairs[2 * i]), zero[i] = to_float(pairs[2 * i + 1]);
}
template <int... I>
SK_INLINE Vector every_second(Vector x, Vector y, int first, Indices<I...>) {
    return first == 0 ? SK_SHUFFLE(x, y, (2 * I)...) : SK_SHUFFLE(x, y, (2 * I + 1)...);
}
template <>
SK_INLINE void load_scales(const float* pairs, Vector& scale, Vector& zero) {
    const Vector low = load(pairs), high = load(pairs + kLanes);
    scale = every_second(low, high, 0, CountTo<kLanes>::type{});
    zero = every_second(low, high, 1, CountTo<kLanes>::type{});
}
template <>
SK_INLINE void load_scales(const Bfloat16* pairs, Vector& scale, Vector& zero) {
    const Words both = load_span(pairs);
    scale = part_of(both, 0), zero = part_of(both, 1);
}

// kLanes bytes as words.
SK_INLINE Integers widen_bytes(const uint8_t* at) {
    typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
    Bytes bytes;
    __builtin_memcpy(&bytes, at, sizeof bytes);
#if defined(__clang__)
    return __builtin_convertvector(bytes, Integers);
#elif defined(__AVX512F__) && SK_HAS(__builtin_ia32_pmovzxbd512_mask)
    typedef char Chars __attribute__((vector_size(16)));
    return Integers(__builtin_ia32_pmovzxbd512_mask(Chars(bytes), Integers{}, uint16_t(-1)));
#elif defined(__AVX2__) && SK_HAS(__builtin_ia32_pmovzxbd256)
    typedef char Chars __attribute__((vector_size(16)));
    typedef long long Longs __attribute__((vector_size(16)));
    long long low;
    __builtin_memcpy(&low, &bytes, sizeof low);
    return Integers(__builtin_ia32_pmovzxbd256(Chars(Longs{low, 0})));
#else
    Integers words;
    for (int i = 0; i < kLanes; ++i) words[i] = bytes[i];
    return words;
#endif
}

}  // namespace
