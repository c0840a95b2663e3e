// vector types of SK_VECTOR_BYTES bytes, and what the functions on them share: fused multiply-add, rounding, bits.
// Every operation rounds the same way at every width, so a function gives the same bits on every instruction set.
#pragma once

#include <cstdint>
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#define SK_JOIN_(a, b, c, d) a##b##c##d
#define SK_JOIN(a, b, c, d) SK_JOIN_(a, b, c, d)
#if SK_VECTOR_BYTES == 16
#define SK_FLOAT_LANES 4
#define SK_DOUBLE_LANES 2
#define SK_LOWER_HALF 0, 1
#define SK_UPPER_HALF 2, 3
#elif SK_VECTOR_BYTES == 32
#define SK_FLOAT_LANES 8
#define SK_DOUBLE_LANES 4
#define SK_LOWER_HALF 0, 1, 2, 3
#define SK_UPPER_HALF 4, 5, 6, 7
#elif SK_VECTOR_BYTES == 64
#define SK_FLOAT_LANES 16
#define SK_DOUBLE_LANES 8
#define SK_LOWER_HALF 0, 1, 2, 3, 4, 5, 6, 7
#define SK_UPPER_HALF 8, 9, 10, 11, 12, 13, 14, 15
#else
#error "SK_VECTOR_BYTES is 16, 32 or 64"
#endif

// The names by which the vector classes of torch's headers call the functions: Sleef_expf8_u10, Sleef_fmodd4.
#define SK_FLOATS(name, accuracy) SK_JOIN(Sleef_##name, f, SK_FLOAT_LANES, accuracy)
#define SK_DOUBLES(name, accuracy) SK_JOIN(Sleef_##name, d, SK_DOUBLE_LANES, accuracy)
// Hidden: a super kernel takes the functions into itself, and shows them to no other library.
#define SK_VECTOR_FUNCTION extern "C" __attribute__((visibility("hidden")))

namespace sk_math {

typedef float Floats __attribute__((vector_size(SK_VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(SK_VECTOR_BYTES)));
typedef double Doubles __attribute__((vector_size(SK_VECTOR_BYTES)));
typedef int64_t Longs __attribute__((vector_size(SK_VECTOR_BYTES)));
typedef float HalfFloats __attribute__((vector_size(SK_VECTOR_BYTES / 2)));

// a * b + c, rounded once
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#elif defined(__clang__)
  return __builtin_elementwise_fma(a, b, c);
#elif SK_VECTOR_BYTES == 32
  return __builtin_ia32_vfmaddps256(a, b, c);
#else
  return __builtin_ia32_vfmaddps512_mask(a, b, c, static_cast<uint16_t>(-1), 4);
#endif
}

inline Doubles fma(Doubles a, Doubles b, Doubles c) {
#if defined(__aarch64__)
  return vfmaq_f64(c, a, b);
#elif defined(__clang__)
  return __builtin_elementwise_fma(a, b, c);
#elif SK_VECTOR_BYTES == 32
  return __builtin_ia32_vfmaddpd256(a, b, c);
#else
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, static_cast<uint8_t>(-1), 4);
#endif
}

inline Doubles square_root(Doubles x) {
#if defined(__aarch64__)
  return vsqrtq_f64(x);
#elif defined(__clang__)
  return __builtin_elementwise_sqrt(x);
#elif SK_VECTOR_BYTES == 32
  return __builtin_ia32_sqrtpd256(x);
#else
  return __builtin_ia32_sqrtpd512_mask(x, x, static_cast<uint8_t>(-1), 4);
#endif
}

inline Floats all(float value) { return Floats{} + value; }
inline Doubles all(double value) { return Doubles{} + value; }
inline Ints bits(Floats x) { return reinterpret_cast<Ints>(x); }
inline Longs bits(Doubles x) { return reinterpret_cast<Longs>(x); }
inline Floats from_bits(Ints x) { return reinterpret_cast<Floats>(x); }
inline Doubles from_bits(Longs x) { return reinterpret_cast<Doubles>(x); }

inline Floats absolute(Floats x) { return from_bits(bits(x) & 0x7fffffff); }
inline Doubles absolute(Doubles x) { return from_bits(bits(x) & INT64_MAX); }
// the magnitude of a value that is not negative, with the sign of another
inline Floats with_sign(Floats magnitude, Floats sign) { return from_bits(bits(magnitude) | (bits(sign) & INT32_MIN)); }
inline Doubles with_sign(Doubles magnitude, Doubles sign) {
  return from_bits(bits(magnitude) | (bits(sign) & INT64_MIN));
}

// Added to a small number, these leave no room for a fraction: the sum's last bits are the nearest integer.
constexpr float kFloatShift = 0x1.8p23f;
constexpr double kDoubleShift = 0x1.8p52;
inline Floats rounded(Floats x) { return x + kFloatShift; }
inline Doubles rounded(Doubles x) { return x + kDoubleShift; }
// the integer of such a sum, as an integer
inline Ints integer_of(Floats sum) { return bits(sum) - 0x4b400000; }
inline Longs integer_of(Doubles sum) { return bits(sum) - 0x4338000000000000; }
inline Doubles to_double(Longs small) { return from_bits(small + 0x4338000000000000) - kDoubleShift; }

// The nearer of x and the limit; NaN stays NaN.
inline Floats at_most(Floats x, float limit) {
#if !defined(__clang__) && SK_VECTOR_BYTES == 32
  return __builtin_ia32_minps256(all(limit), x);
#elif !defined(__clang__) && SK_VECTOR_BYTES == 64
  return __builtin_ia32_minps512_mask(all(limit), x, x, static_cast<uint16_t>(-1), 4);
#else
  return x > limit ? all(limit) : x;
#endif
}
inline Floats at_least(Floats x, float limit) {
#if !defined(__clang__) && SK_VECTOR_BYTES == 32
  return __builtin_ia32_maxps256(all(limit), x);
#elif !defined(__clang__) && SK_VECTOR_BYTES == 64
  return __builtin_ia32_maxps512_mask(all(limit), x, x, static_cast<uint16_t>(-1), 4);
#else
  return x < limit ? all(limit) : x;
#endif
}
inline Doubles at_most(Doubles x, double limit) { return x > limit ? all(limit) : x; }
inline Doubles at_least(Doubles x, double limit) { return x < limit ? all(limit) : x; }

// 2^n of an n whose power is a normal number
inline Floats power_of_two(Ints n) { return from_bits((n + 127) << 23); }
inline Doubles power_of_two(Longs n) { return from_bits((n + 1023) << 52); }

// c0 + x * (c1 + x * (c2 + ...))
template <class Vector, class Number>
inline Vector polynomial(Vector, Number last) {
  return all(last);
}
template <class Vector, class Number, class... Numbers>
inline Vector polynomial(Vector x, Number first, Numbers... others) {
  return fma(x, polynomial(x, others...), all(first));
}

inline bool any(Ints mask) {
  bool found = false;
  for (int lane = 0; lane < SK_FLOAT_LANES; ++lane) found |= mask[lane] != 0;
  return found;
}

// A function of floats that is computed in double, half of the lanes at a time.
template <class Function>
inline Floats in_double(Function function, Floats x) {
  HalfFloats lower = __builtin_shufflevector(x, x, SK_LOWER_HALF), upper = __builtin_shufflevector(x, x, SK_UPPER_HALF);
  lower = __builtin_convertvector(function(__builtin_convertvector(lower, Doubles)), HalfFloats);
  upper = __builtin_convertvector(function(__builtin_convertvector(upper, Doubles)), HalfFloats);
  return __builtin_shufflevector(lower, upper, SK_LOWER_HALF, SK_UPPER_HALF);
}

template <class Function>
inline Floats in_double(Function function, Floats x, Floats y) {
  HalfFloats x0 = __builtin_shufflevector(x, x, SK_LOWER_HALF), x1 = __builtin_shufflevector(x, x, SK_UPPER_HALF);
  HalfFloats y0 = __builtin_shufflevector(y, y, SK_LOWER_HALF), y1 = __builtin_shufflevector(y, y, SK_UPPER_HALF);
  x0 = __builtin_convertvector(
      function(__builtin_convertvector(x0, Doubles), __builtin_convertvector(y0, Doubles)), HalfFloats);
  x1 = __builtin_convertvector(
      function(__builtin_convertvector(x1, Doubles), __builtin_convertvector(y1, Doubles)), HalfFloats);
  return __builtin_shufflevector(x0, x1, SK_LOWER_HALF, SK_UPPER_HALF);
}

}  // namespace sk_math
