// pow and hypot of vectors of floats
#include "exponential.h"
#include "logarithm.h"

using namespace sk_math;

namespace {

inline Doubles power(Doubles x, Doubles y) {
  Doubles a = absolute(x);
  Doubles t = y * log2(a);
  t = a == 1.0 ? Doubles{} : t;  // also for an infinite y
  Doubles result = exp(t * 0x1.62e42fefa39efp-1);
  // A float above 2^24 is an even integer.
  Doubles exponent = at_most(absolute(y), 0x1p25);
  Doubles shifted = rounded(exponent);
  Longs whole = shifted - kDoubleShift == exponent, odd = whole & -(bits(shifted) & 1);
  Longs negative = bits(x) < 0;
  result = from_bits(bits(result) ^ (negative & odd & INT64_MIN));
  result = ((x < 0.0) & ~whole & (a != __builtin_inf())) != 0 ? all(__builtin_nan("")) : result;
  result = ((x != x) | (y != y)) != 0 ? x + y : result;
  return ((x == 1.0) | (y == 0.0)) != 0 ? all(1.0) : result;
}

// The squares are exact and their sum is in the range of doubles.
inline Doubles hypotenuse(Doubles x, Doubles y) {
  Longs infinite = (absolute(x) == __builtin_inf()) | (absolute(y) == __builtin_inf());
  return infinite != 0 ? all(__builtin_inf()) : square_root(fma(x, x, y * y));
}

}  // namespace

SK_VECTOR_FUNCTION Floats SK_FLOATS(pow, _u10)(Floats x, Floats y) { return in_double(power, x, y); }
SK_VECTOR_FUNCTION Floats SK_FLOATS(hypot, _u05)(Floats x, Floats y) { return in_double(hypotenuse, x, y); }
