// exp of vectors: floats to 1 ulp, and doubles as exactly as functions of floats need that are computed in double.
#pragma once

#include "lanes.h"

namespace sk_math {

// a power as fraction * 2^exponent; the exponent is an integer plus kFloatShift
struct Scaled {
  Floats fraction;
  Floats shifted_exponent;
};

constexpr float kLn2 = 0x1.62e4p-1f;  // of 15 bits: its product with a small integer is exact
constexpr float kLn2Rest = 0x1.7f7d1cp-20f;

// x / ln 2 rounded, so that the power of the rest is between 0.75 and 1.5: just below 1 the last bit of a float is half
// as large as above
inline Floats shifted_exponent(Floats x) { return fma(x - 0.0588f, all(0x1.715476p+0f), all(kFloatShift)); }

// e^r = 1 + r + r^2 q(r) for r between -0.289 and 0.4065; q is a minimax fit
inline Floats small_exp(Floats r) {
  Floats q = polynomial(r, 0.5000002f, 0.1666657f, 0.0416582f, 0.008360364f, 0.0014648685f);
  return fma(r * r, q, r) + 1.0f;
}

// e^x of a finite x of at most a few hundred
inline Scaled scaled_exp(Floats x) {
  Floats shifted = shifted_exponent(x), n = shifted - kFloatShift;
  Floats r = fma(n, all(-kLn2Rest), fma(n, all(-kLn2), x));
  return {small_exp(r), shifted};
}

// a number between 2^-152 and 2^130, or zero or infinity in its place
inline Floats number_of(Scaled power) {
#if !defined(__clang__) && SK_VECTOR_BYTES == 64
  Floats exponent = power.shifted_exponent - kFloatShift;
  return __builtin_ia32_scalefps512_mask(power.fraction, exponent, exponent, static_cast<uint16_t>(-1), 4);
#else
  // in two steps, of which only the second rounds
  Ints exponent = integer_of(power.shifted_exponent), half = exponent >> 1;
  return power.fraction * power_of_two(half) * power_of_two(exponent - half);
#endif
}

inline Floats exp(Floats x) { return number_of(scaled_exp(at_least(at_most(x, 89.0f), -104.5f))); }

// e^x where it is a normal number; x is not NaN
inline Floats normal_exp(Floats x) {
  Scaled power = scaled_exp(x);
  return from_bits(bits(power.fraction) + (integer_of(power.shifted_exponent) << 23));
}

// e^(x y), likewise; the product is not rounded
inline Floats normal_exp_of_product(Floats x, Floats y) {
  Floats shifted = shifted_exponent(x * y), n = shifted - kFloatShift;
  Floats r = fma(n, all(-kLn2Rest), fma(x, y, n * -kLn2));
  return from_bits(bits(small_exp(r)) + (integer_of(shifted) << 23));
}

// e^x with a relative error below 2^-40; above e^700 and below e^-700 it is as there
inline Doubles exp(Doubles x) {
  x = at_least(at_most(x, 700.0), -700.0);
  Doubles shifted = fma(x, all(0x1.71547652b82fep+0), all(kDoubleShift));
  Doubles n = shifted - kDoubleShift;
  Doubles r = fma(n, all(-0x1.62e42fefa39efp-1), x);
  Doubles p = polynomial(r, 1.000000000000027, 0.9999999999797456, 0.4999999999907926, 0.16666666891368426,
                         0.041666667190086375, 0.008333266034617572, 0.0013888781836818966, 0.00019915901707338936,
                         2.4892746097831532e-05);
  return p * power_of_two(integer_of(shifted));
}

}  // namespace sk_math
