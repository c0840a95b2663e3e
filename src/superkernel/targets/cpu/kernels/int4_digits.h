// int4_digits.h: a row of floats as whole numbers of three signed bytes, and their products with packed int4 weights.
//
// Within a group, x = unit * (65536 * d2 + 256 * d1 + d0) with digits d from -128 to 127 and a unit that is a power of
// two: 2^-23 to 2^-22 of the largest magnitude of the group. Products of digits and weights are added up as integers,
// without rounding; the sum of a group is rounded when it becomes a float. Weights need not become floats, and errors
// are smaller than those of sums of floats.
#pragma once

#include "int4_weights.h"
#include "int8.h"

#if defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
#define SK_INT4_DIGITS 1
#else
#define SK_INT4_DIGITS 0
#endif

namespace {

constexpr int64_t kDigitLeastGroup = 32, kDigitMostGroup = 256;  // sums of larger groups may not fit an int32

}  // namespace

#if SK_INT4_DIGITS

namespace {

constexpr int kDigits = 3;
constexpr int kShortSteps = 8;  // how often two products of a weight of 15 and a digit of -128 fit an int16
constexpr int64_t kDigitPrefetchBytes = 4096;

// Eight lanes, whatever the width of a vector: the smallest quarter of a group has eight rows.
typedef float EightFloats __attribute__((vector_size(32)));
typedef float AnyEightFloats __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t EightIntegers __attribute__((vector_size(32)));
typedef uint32_t EightWords __attribute__((vector_size(32)));

typedef uint8_t Nibbles __attribute__((vector_size(kVectorBytes)));
typedef uint8_t AnyNibbles __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));
typedef int16_t Shorts __attribute__((vector_size(kVectorBytes)));

// The digits of four rows, which are multiplied at a time. Four vectors of weights have R rows each: the four rows are row
// i of each vector. Words are in the order of the vectors, then of i.
typedef uint32_t DigitWords[kDigits];

// What the sum of a group is made of, beside the products of digits.
struct DigitGroup {
    float unit;
    float sum;                        // of the numbers of the group
    int32_t high_offset, low_offset;  // 8 * the sum of d2, 8 * the sum of 256 * d1 + d0
};

SK_INLINE EightFloats load_eight(const float* at) { return *reinterpret_cast<const AnyEightFloats*>(at); }

// The bits of the largest magnitude: they are ordered as magnitudes are, and NaN is above infinity.
SK_INLINE uint32_t largest_bits(const float* x, int64_t count) {
    EightIntegers most = {};
    for (int64_t i = 0; i < count; i += 8) {
        const EightIntegers bits = EightIntegers(load_eight(x + i)) & 0x7fffffff;
        const EightIntegers greater = bits > most;
        most = (bits & greater) | (most & ~greater);
    }
    int32_t largest = 0;
    for (int lane = 0; lane < 8; ++lane) largest = most[lane] > largest ? most[lane] : largest;
    return uint32_t(largest);
}

// The digits of a group. False if it has a number that is not finite, or if its largest is outside 2^-100 .. 2^100, where
// units and sums might not be normal floats.
template <int R>
SK_NOINLINE bool split_group(const float* from, int64_t count, DigitWords* words, DigitGroup& group) {
    const uint32_t largest = largest_bits(from, count);
    if (largest != 0 && (largest < 27u << 23 || largest >= 227u << 23)) return false;
    // The largest number of three digits is 0x7f7f7f; if the mantissa is above it, it carries.
    const uint32_t exponent = largest == 0 ? 127 : (largest + 0x10101) >> 23;
    const float factor = as_float((2 * 127 + 22 - exponent) << 23);
    const int64_t quarter = count / 4;
    alignas(32) float x[kDigitMostGroup];  // a quarter for the rows of each of the four vectors
    for (int64_t t = 0; t < quarter; t += R)
        for (int part = 0; part < 4; ++part)
            __builtin_memcpy(x + part * quarter + t, from + 4 * t + part * R, R * sizeof(float));
    EightIntegers high = {}, low = {};
    for (int64_t t = 0; t < quarter; t += 8) {
        EightWords digits[kDigits] = {};
        SK_UNROLL
        for (int part = 0; part < 4; ++part) {
            const EightFloats scaled = load_eight(x + part * quarter + t) * factor;
            const EightWords half = (EightWords(scaled) & 0x80000000u) | as_bits(0.5f);
            const EightIntegers number = __builtin_convertvector(scaled + EightFloats(half), EightIntegers);
            const EightWords shifted = EightWords(number) + 0x808080u;  // its bytes are the digits plus 128
            const EightIntegers highest = EightIntegers(shifted >> 16) - 128;
            high += highest;
            low += number - highest * 65536;
            SK_UNROLL
            for (int digit = 0; digit < kDigits; ++digit)
                digits[digit] |= (shifted >> 8 * digit & 0xffu) << 8 * part;
        }
        for (int lane = 0; lane < 8; ++lane)
            for (int digit = 0; digit < kDigits; ++digit) words[t + lane][digit] = digits[digit][lane] ^ 0x80808080u;
    }
    int32_t high_sum = 0, low_sum = 0;
    for (int lane = 0; lane < 8; ++lane) high_sum += high[lane], low_sum += low[lane];
    group.unit = as_float((exponent - 22) << 23);
    group.sum = multiply_add(float(high_sum), 65536, float(low_sum)) * group.unit;
    group.high_offset = 8 * high_sum, group.low_offset = 8 * low_sum;
    return true;
}

const Nibbles kLowNibbles = Nibbles{} + 15;  // in memory where all registers are in use

// Elements of two vectors in turn, within each 16 bytes: of their lower halves (Half 0), of their upper halves (1).
template <int Half, class V, int... I>
SK_INLINE V interleave_lanes(V x, V y, Indices<I...>) {
    constexpr int size = sizeof...(I), lane = size * 16 / kVectorBytes;
#if SK_HAS(__builtin_shufflevector)
    return __builtin_shufflevector(x, y, (I / lane * lane + Half * lane / 2 + I % lane / 2 + I % 2 * size)...);
#else
    return __builtin_shuffle(x, y, V{(I / lane * lane + Half * lane / 2 + I % lane / 2 + I % 2 * size)...});
#endif
}

// Lanes of 16 bytes of two vectors; those of y follow those of x.
template <int A, int B, int C, int D, int... I>
SK_INLINE Sums pick_lanes(Sums x, Sums y, Indices<I...>) {
    constexpr int lanes[] = {A, B, C, D};
    return SK_SHUFFLE(x, y, (lanes[I / 4] * 4 + I % 4)...);
}
template <int A, int B, int C = 0, int D = 0>
SK_INLINE Sums pick_lanes(Sums x, Sums y) {
    return pick_lanes<A, B, C, D>(x, y, CountTo<kLanes>::type{});
}

// Packed weights whose blocks have rows of RowBytes bytes, in halves.
template <int RowBytes>
struct DigitProducts {
    static constexpr int kRows = kVectorBytes / RowBytes;   // of a vector
    static constexpr int kVectors = RowBytes / kLanes;      // of the low, and of the high columns of a block
    // Digits as four vectors of weights are multiplied by them: repeated for each column.
    typedef Sums Pattern[kDigits];

    SK_INLINE static void repeat(const DigitWords* words, int64_t depth, Pattern* to) {
        typedef uint32_t Row __attribute__((vector_size(RowBytes), may_alias));
        for (int64_t t = 0; t < depth / 4; ++t)
            for (int digit = 0; digit < kDigits; ++digit)
                reinterpret_cast<Row*>(&to[t / kRows][digit])[t % kRows] = words[t][digit] - Row{};
    }

#if SK_VNNI
    typedef Sums Total;  // of four products

    SK_INLINE static void add(Total& total, Nibbles weights, const Sums& digits) {
#if defined(__AVX512VNNI__)
        asm("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(weights), "v"(digits));
#else
        asm("{vex} vpdpbusd %2, %1, %0" : "+x"(total) : "x"(weights), "m"(digits));
#endif
    }
    SK_INLINE static Sums widen(Sums total) { return total; }
#else
    typedef Shorts Total;  // of pairs of products

    SK_INLINE static void add(Total& total, Nibbles weights, const Sums& digits) {
        Shorts products;
#if defined(__AVX512BW__)
        asm("vpmaddubsw %2, %1, %0" : "=v"(products) : "v"(weights), "v"(digits));
#else
        asm("vpmaddubsw %2, %1, %0" : "=x"(products) : "x"(weights), "m"(digits));
#endif
        total += products;
    }
    SK_INLINE static Sums widen(Shorts total) {
        Sums sums;
#if defined(__AVX512BW__)
        asm("vpmaddwd %2, %1, %0" : "=v"(sums) : "v"(total), "v"(Shorts{} + 1));
#else
        asm("vpmaddwd %2, %1, %0" : "=x"(sums) : "x"(total), "x"(Shorts{} + 1));
#endif
        return sums;
    }
#endif

    SK_INLINE static Nibbles low_nibbles(Nibbles packed) {
#if defined(__AVX512F__)
        return packed & 15;
#else
        Nibbles low;
        asm("vpand %2, %1, %0" : "=x"(low) : "x"(packed), "m"(kLowNibbles));
        return low;
#endif
    }

    template <class T>
    SK_INLINE static void add_nibbles(Nibbles packed, const Sums (&digits)[kDigits], T (&total)[2][kDigits]) {
        const Nibbles high = low_nibbles(Nibbles(Words(packed) >> 4)), low = low_nibbles(packed);
        SK_UNROLL
        for (int digit = 0; digit < kDigits; ++digit) add(total[0][digit], low, digits[digit]);
        SK_UNROLL
        for (int digit = 0; digit < kDigits; ++digit) add(total[1][digit], high, digits[digit]);
    }

    // Four vectors of rows, in one half of the bytes of each lane.
    template <int Half>
    SK_INLINE static void add_rows(const uint8_t* from, const Sums (&digits)[kDigits], Total (&total)[2][2][kDigits]) {
        Nibbles rows[4];
        SK_UNROLL
        for (int i = 0; i < 4; ++i) rows[i] = *reinterpret_cast<const AnyNibbles*>(from + i * kVectorBytes);
        typedef CountTo<kVectorBytes>::type Bytes;
        typedef CountTo<kVectorBytes / 2>::type Pairs;
        const Shorts first = Shorts(interleave_lanes<Half>(rows[0], rows[1], Bytes{}));
        const Shorts second = Shorts(interleave_lanes<Half>(rows[2], rows[3], Bytes{}));
        add_nibbles(Nibbles(interleave_lanes<0>(first, second, Pairs{})), digits, total[0]);
        add_nibbles(Nibbles(interleave_lanes<1>(first, second, Pairs{})), digits, total[1]);
    }

    typedef Sums HalfSums[2][2][kDigits];  // [of four bytes, of the next four][of low, of high nibbles][digit]

    SK_INLINE static void add_totals(const Total (&total)[2][2][kDigits], HalfSums& sums) {
        SK_UNROLL
        for (int i = 0; i < 4 * kDigits; ++i)
            sums[i / 2 / kDigits][i / kDigits % 2][i % kDigits] += widen(total[i / 2 / kDigits][i / kDigits % 2][i % kDigits]);
    }

    // Both halves of the bytes of each lane: together where their totals fit the registers, otherwise one after the other.
    SK_INLINE static void add_steps(const uint8_t* from, int64_t steps, const Pattern* patterns, HalfSums (&sums)[2]) {
#if defined(__AVX512F__)
        Total total[2][2][2][kDigits] = {};
        for (int64_t i = 0; i < steps; ++i, from += 4 * kVectorBytes) {
            Pattern digits;
            SK_UNROLL
            for (int digit = 0; digit < kDigits; ++digit) {
                digits[digit] = patterns[i][digit];
                pin_register(digits[digit]);
            }
            add_rows<0>(from, digits, total[0]);
            prefetch(from + kDigitPrefetchBytes, 4 * kVectorBytes);
            asm("" : "+r"(from));  // the rows are loaded again: there are no registers for them
            add_rows<1>(from, digits, total[1]);
        }
        add_totals(total[0], sums[0]);
        add_totals(total[1], sums[1]);
#else
        Total total[2][2][kDigits] = {};
        for (int64_t i = 0; i < steps; ++i) {
            add_rows<0>(from + i * 4 * kVectorBytes, patterns[i], total);
            prefetch(from + i * 4 * kVectorBytes + kDigitPrefetchBytes, 4 * kVectorBytes);
        }
        add_totals(total, sums[0]);
        Total next[2][2][kDigits] = {};
        for (int64_t i = 0; i < steps; ++i) add_rows<1>(from + i * 4 * kVectorBytes, patterns[i], next);
        add_totals(next, sums[1]);
#endif
    }

    // Four vectors of sums, each of four bytes of each lane, to vectors of columns in order; rows are added up.
    SK_INLINE static void in_order(const Sums (&of)[4], Sums (&to)[kVectors]) {
#if defined(__AVX512F__)
        const Sums left = pick_lanes<0, 1, 4, 5>(of[0], of[1]), right = pick_lanes<0, 1, 4, 5>(of[2], of[3]);
        const Sums left_behind = pick_lanes<2, 3, 6, 7>(of[0], of[1]), right_behind = pick_lanes<2, 3, 6, 7>(of[2], of[3]);
        const Sums x = left + left_behind, y = right + right_behind;
        const Sums even = pick_lanes<0, 2, 4, 6>(x, y), odd = pick_lanes<1, 3, 5, 7>(x, y);
        if (kRows == 2)
            to[0] = even, to[kVectors - 1] = odd;
        else
            to[0] = even + odd;
#else
        SK_UNROLL
        for (int i = 0; i < 2; ++i) {
            const Sums even = pick_lanes<0, 2>(of[2 * i], of[2 * i + 1]), odd = pick_lanes<1, 3>(of[2 * i], of[2 * i + 1]);
            if (kRows == 1)
                to[i] = even, to[kVectors / 2 + i] = odd;
            else
                to[i] = even + odd;
        }
#endif
    }

    // sums += scale * (sum of (weight - 8) * x) + zero * (sum of x), for a group of rows of a block.
    template <class T>
    SK_NOINLINE static void add_group(const uint8_t* from, int64_t quarter, const Pattern* patterns,
                                      const DigitGroup& group, const T* scales, float* sums) {
        HalfSums half[2] = {};
        const int64_t steps = quarter / kRows;
        constexpr int64_t most = SK_VNNI ? kDigitMostGroup : kShortSteps;
        for (int64_t i = 0; i < steps; i += most)
            add_steps(from + i * 4 * kVectorBytes, least(most, steps - i), patterns + i, half);
        SK_UNROLL
        for (int nibble = 0; nibble < 2; ++nibble) {
            Sums high[4], low[4], high_columns[kVectors], low_columns[kVectors];
            SK_UNROLL
            for (int i = 0; i < 4; ++i) {
                const Sums(&digits)[kDigits] = half[i / 2][i % 2][nibble];
                high[i] = digits[2], low[i] = digits[1] * 256 + digits[0];
            }
            in_order(high, high_columns);
            in_order(low, low_columns);
            SK_UNROLL
            for (int v = 0; v < kVectors; ++v) {
                const int64_t column = nibble * RowBytes + v * kLanes;
                Vector scale, zero;
                load_scales(scales + 2 * column, scale, zero);
                const Vector highs = __builtin_convertvector(high_columns[v] - group.high_offset, Vector);
                const Vector lows = __builtin_convertvector(low_columns[v] - group.low_offset, Vector);
                const Vector product = multiply_add(highs, broadcast(65536), lows) * broadcast(group.unit);
                const Vector sum = multiply_add(zero, broadcast(group.sum), load(sums + column));
                store(sums + column, multiply_add(scale, product, sum));
            }
        }
    }
};

}  // namespace

#endif
