// log of vectors of doubles, as exactly as functions of floats need that are computed in double.
#pragma once

#include "lanes.h"

namespace sk_math {

// x = m * 2^exponent with m between sqrt(1/2) and sqrt(2), for a normal x above zero
inline Longs exponent_of(Doubles x) { return (bits(x) - 0x3fe6a09e667f3bcd) >> 52; }

// log(1 + f) with a relative error below 2^-43; 1 + f is between sqrt(1/2) and sqrt(2)
inline Doubles log_near_one(Doubles f) {
  Doubles s = f / (f + 2.0);  // log((1 + s) / (1 - s)) = 2 s + s^3 p(s^2)
  Doubles t = s * s;
  Doubles p = polynomial(t, 0.6666666667581695, 0.39999995616440653, 0.2857210974397887, 0.22176163409816566,
                         0.19584528624081354);
  return fma(s * t, p, s + s);
}

// The logarithm of x in a base whose natural logarithm is 1 / `scale`; `of_two` is the logarithm of 2 in that base,
// `one_less` is x - 1, which a caller may know better than x.
inline Doubles log(Doubles x, Doubles one_less, double scale, double of_two) {
  Longs exponent = exponent_of(x);
  Doubles m = from_bits(bits(x) - (exponent << 52));
  Doubles f = exponent == 0 ? one_less : m - 1.0;
  Doubles result = fma(to_double(exponent), all(of_two), log_near_one(f) * scale);
  result = x > 0.0 ? result : all(__builtin_nan(""));  // NaN and what is below zero
  result = x == 0.0 ? all(-__builtin_inf()) : result;
  return x == __builtin_inf() ? x : result;
}

inline Doubles log2(Doubles x) { return log(x, x - 1.0, 0x1.71547652b82fep+0, 1.0); }

}  // namespace sk_math
