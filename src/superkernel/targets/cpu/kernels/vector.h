// vector.h: the widest vector of floats of the machine, and the element types that are loaded into it.
//
// The compiler's vector types instead of <immintrin.h>: that header alone costs more compile time than the kernels.
#pragma once

#include <stdint.h>

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
#else
constexpr int kLanes = 4;
constexpr int kRegisters = 16;
#endif
constexpr int kVectorBytes = 4 * kLanes;

typedef float Vector __attribute__((vector_size(kVectorBytes)));
typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
typedef float Quad __attribute__((vector_size(16)));
typedef float AnyVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef uint32_t AnyWords __attribute__((vector_size(kVectorBytes), aligned(2), may_alias));
typedef float AnyQuad __attribute__((vector_size(16), aligned(4), may_alias));

#define SK_INLINE inline __attribute__((always_inline))
#define SK_NOINLINE __attribute__((noinline))
#if defined(__has_builtin)
#define SK_HAS(builtin) __has_builtin(builtin)
#else
#define SK_HAS(builtin) 0
#endif
// Before loops over variables that must be in registers.
#if defined(__clang__)
#define SK_UNROLL _Pragma("unroll")
#else
#define SK_UNROLL _Pragma("GCC unroll 16")
#endif

SK_INLINE Vector load(const float* at) { return *reinterpret_cast<const AnyVector*>(at); }
SK_INLINE void store(float* at, Vector value) { *reinterpret_cast<AnyVector*>(at) = value; }
SK_INLINE Vector broadcast(float value) { return value - Vector{}; }

// Forces a value into a register: GCC otherwise reloads it for every use, and the loops are bound by loads.
template <class V>
SK_INLINE void pin_register(V& value) {
#if defined(__AVX512F__)
    asm("" : "+v"(value));
#elif defined(__SSE2__)
    asm("" : "+x"(value));
#elif defined(__aarch64__)
    asm("" : "+w"(value));
#endif
}

// Fused multiply-add where the machine has it. Not left to the compiler, which may contract in one loop and not in another.
SK_INLINE Vector multiply_add(Vector x, Vector y, Vector z) {
#if defined(__clang__)
    return __builtin_elementwise_fma(x, y, z);
#elif defined(__AVX512F__) && SK_HAS(__builtin_ia32_vfmaddps512_mask)
    return __builtin_ia32_vfmaddps512_mask(x, y, z, uint16_t(-1), 4);
#elif defined(__FMA__) && !defined(__AVX512F__) && SK_HAS(__builtin_ia32_vfmaddps256)
    return __builtin_ia32_vfmaddps256(x, y, z);
#else
    return x * y + z;
#endif
}

SK_INLINE float multiply_add(float x, float y, float z) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(x, y, z);
#else
    return x * y + z;
#endif
}

// The indices of a shuffle.
template <int... I>
struct Indices {};
template <int N, int... I>
struct CountTo : CountTo<N - 1, N - 1, I...> {};
template <int... I>
struct CountTo<0, I...> {
    using type = Indices<I...>;
};

#if SK_HAS(__builtin_shufflevector)
#define SK_SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SK_SHUFFLE(x, y, ...) __builtin_shuffle(x, y, Places{__VA_ARGS__})
typedef int32_t Places __attribute__((vector_size(kVectorBytes)));
#endif

// Elements of two vectors in turn: of their lower halves, of their upper halves.
template <int Half, int... I>
SK_INLINE Vector interleave(Vector x, Vector y, Indices<I...>) {
    return SK_SHUFFLE(x, y, (I / 2 + Half * kLanes / 2 + I % 2 * kLanes)...);
}
SK_INLINE Vector interleave_low(Vector x, Vector y) { return interleave<0>(x, y, CountTo<kLanes>::type{}); }
SK_INLINE Vector interleave_high(Vector x, Vector y) { return interleave<1>(x, y, CountTo<kLanes>::type{}); }

// In each group of four lanes: two sums of pairs of lanes of x, then two of y.
template <class V, int... I>
SK_INLINE V add_pairs(V x, V y, Indices<I...>) {
    return SK_SHUFFLE(x, y, (I / 4 * 4 + I % 2 * 2 + I % 4 / 2 * kLanes)...) +
           SK_SHUFFLE(x, y, (I / 4 * 4 + I % 2 * 2 + 1 + I % 4 / 2 * kLanes)...);
}

// Adds up the groups of four lanes.
#if defined(__AVX512F__) && SK_HAS(__builtin_shufflevector)
SK_INLINE Quad add_groups(Vector x) {
    typedef float Half __attribute__((vector_size(32)));
    const Half half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
}
#else
SK_INLINE Quad add_groups(Vector x) {
    union {
        Vector whole;
        Quad group[kLanes / 4];
    } sums = {x};
    for (int i = 1; i < kLanes / 4; ++i) sums.group[0] += sums.group[i];
    return sums.group[0];
}
#endif

// The sums over all lanes of four vectors. Every one is added up in the same order.
SK_INLINE Quad sum_lanes(Vector w, Vector x, Vector y, Vector z) {
    using Count = CountTo<kLanes>::type;
    const Vector groups = add_pairs(add_pairs(w, x, Count{}), add_pairs(y, z, Count{}), Count{});
    return add_groups(groups);
}

// Elements of type T are loaded by spans of kSpan<T>, which give kParts<T> vectors. Where there are two, the first has
// the elements 0, 2, 4, ... and the second 1, 3, 5, ..., because that is cheap to separate.
struct Bfloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

SK_INLINE float as_float(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
SK_INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}

// The exponent moves by a multiplication, which also makes the smallest numbers normal.
SK_INLINE float to_float(Float16 value) {
    const uint32_t magnitude = uint32_t(value.bits & 0x7fff) << 13;
    const uint32_t special = magnitude >= 0x0f800000 ? 0x7f800000 : 0;  // infinity, not a number
    const float wide = as_float(magnitude) * as_float(0x77800000);
    return as_float((special ? special | magnitude : as_bits(wide)) | uint32_t(value.bits & 0x8000) << 16);
}

// A weight of a quantised matrix. Four parts: a span is read as words, and part i has the elements i, i + 4, i + 8, ...
// A part holds 2^24 times its elements: the byte is in the highest bits of a word, which saves a shift per vector.
struct Int8Weight {
    int8_t value;
};
constexpr float kInt8PartScale = 1.0f / (1 << 24);  // what sums of parts are multiplied by

template <class T>
constexpr int kParts = 1;
template <>
constexpr int kParts<Bfloat16> = 2;
template <>
constexpr int kParts<Int8Weight> = 4;
template <class T>
constexpr int kSpan = kParts<T>* kLanes;

SK_INLINE Vector load_span(const float* at) { return load(at); }
SK_INLINE Words load_span(const Bfloat16* at) { return *reinterpret_cast<const AnyWords*>(at); }
typedef short Halves __attribute__((vector_size(kVectorBytes / 2)));
typedef short AnyHalves __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
SK_INLINE Halves load_span(const Float16* at) { return *reinterpret_cast<const AnyHalves*>(at); }
SK_INLINE Vector part_of(Halves span, int) {
#if defined(__AVX512F__) && !defined(__clang__) && SK_HAS(__builtin_ia32_vcvtph2ps512_mask)
    return __builtin_ia32_vcvtph2ps512_mask(span, Vector{}, uint16_t(-1), 4);
#elif defined(__F16C__) && !defined(__AVX512F__) && SK_HAS(__builtin_ia32_vcvtph2ps256)
    return __builtin_ia32_vcvtph2ps256(span);
#else
    Vector wide;
    for (int i = 0; i < kLanes; ++i) wide[i] = to_float(Float16{uint16_t(span[i])});
    return wide;
#endif
}
typedef int32_t Integers __attribute__((vector_size(kVectorBytes)));
typedef int32_t AnyIntegers __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));
SK_INLINE Integers load_span(const Int8Weight* at) { return *reinterpret_cast<const AnyIntegers*>(at); }
SK_INLINE Vector part_of(Integers span, int part) {
    const Words word = Words(span);
    const Words highest = part == 0 ? word << 24 : (word << (24 - 8 * part)) & 0xff000000u;
    return __builtin_convertvector(Integers(highest), Vector);
}
SK_INLINE Vector part_of(Vector span, int) { return span; }
SK_INLINE Vector part_of(Words span, int part) { return Vector(part ? span & 0xffff0000u : span << 16); }

template <class T>
using Span = decltype(load_span(static_cast<const T*>(nullptr)));

// The first `count` elements of a span, then zeros; memory behind them is not read.
template <class T>
SK_INLINE Span<T> load_partial(const T* at, int64_t count) {
    T some[kSpan<T>] = {};
    for (int64_t i = 0; i < count; ++i) some[i] = at[i];
    return load_span(some);
}

#if defined(__AVX512BW__) && !defined(__clang__) && SK_HAS(__builtin_ia32_loaddquhi512_mask)
template <>
SK_INLINE Vector load_partial(const float* at, int64_t count) {
    return __builtin_ia32_loadups512_mask(at, Vector{}, uint16_t((1u << count) - 1));
}
template <>
SK_INLINE Words load_partial(const Bfloat16* at, int64_t count) {
    typedef short Elements __attribute__((vector_size(kVectorBytes)));
    const uint32_t first = uint32_t((uint64_t(1) << count) - 1);
    return Words(__builtin_ia32_loaddquhi512_mask(reinterpret_cast<const short*>(at), Elements{}, first));
}
#endif

// Prefetches `size` elements to the L2 cache.
template <class T>
SK_INLINE void prefetch(const T* at, int64_t size) {
    for (int64_t i = 0; i < size; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(at + i, 0, 2);
}

SK_INLINE float to_float(float value) { return value; }
SK_INLINE float to_float(Int8Weight value) { return float(value.value); }
SK_INLINE float to_float(Bfloat16 value) { return as_float(uint32_t(value.bits) << 16); }

SK_INLINE void from_float(float value, float& to) { to = value; }
SK_INLINE void from_float(float value, Bfloat16& to) {
    const uint32_t bits = as_bits(value);
    const uint32_t nearest_even = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    to.bits = uint16_t(value != value ? 0x7fc0 : nearest_even);
}
// Numbers below the normal ones are rounded by an addition, the others by their bits: to the nearest, to even.
SK_INLINE void from_float(float value, Float16& to) {
    const uint32_t bits = as_bits(value), magnitude = bits & 0x7fffffff;
    const uint32_t tiny = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
    const uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t rounded = magnitude < 0x38800000 ? tiny : normal;
    if (magnitude >= 0x477ff000) rounded = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    to.bits = uint16_t(rounded | (bits >> 16 & 0x8000));
}

}  // namespace
