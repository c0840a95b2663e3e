// exp, exp2, expm1, sinh and cosh of vectors of floats, and exp of vectors of doubles
#include "exponential.h"

using namespace sk_math;

SK_VECTOR_FUNCTION Floats SK_FLOATS(exp, _u10)(Floats x) { return exp(x); }

SK_VECTOR_FUNCTION Floats SK_FLOATS(exp2, _u10)(Floats x) {
  Floats bounded = at_least(at_most(x, 130.0f), -152.0f);
  Floats shifted = rounded(bounded);
  Floats r = bounded - (shifted - kFloatShift);  // exact
  // 2^r = 1 + r p(r) for |r| <= 1/2; p is a minimax fit, its first number in two parts
  Floats rest = polynomial(r, 2.0417296e-08f, 0.24022648f, 0.055503324f, 0.009618438f, 0.0013398901f, 0.0001535334f);
  return number_of({fma(r, all(0x1.62e43p-1f), r * rest) + 1.0f, shifted});
}

SK_VECTOR_FUNCTION Floats SK_FLOATS(expm1, _u10)(Floats x) {
  auto expm1 = [](Doubles d) {
    // Taylor's series, less its first term
    Doubles rest = polynomial(d, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
                              1.0 / 362880, 1.0 / 3628800);
    return absolute(d) < 0.35 ? fma(d * d, rest, d) : exp(d) - 1.0;
  };
  Floats y = in_double(expm1, x);
  return x == 0.0f ? x : y;  // -0 stays
}

SK_VECTOR_FUNCTION Floats SK_FLOATS(cosh, _u10)(Floats x) {
  auto cosh = [](Doubles d) {
    Doubles e = exp(d);
    return 0.5 * e + 0.5 / e;
  };
  return in_double(cosh, x);
}

SK_VECTOR_FUNCTION Floats SK_FLOATS(sinh, _u10)(Floats x) {
  auto sinh = [](Doubles d) {
    Doubles e = exp(d), t = d * d;
    Doubles rest = polynomial(t, 1.0 / 6, 1.0 / 120, 1.0 / 5040, 1.0 / 362880, 1.0 / 39916800, 1.0 / 6227020800);
    return absolute(d) < 1.0 ? fma(d * t, rest, d) : 0.5 * e - 0.5 / e;
  };
  return in_double(sinh, x);
}

// As exp of floats: ln 2 in two parts, and a rest between -0.289 and 0.4065, here in Taylor's series.
SK_VECTOR_FUNCTION Doubles SK_DOUBLES(exp, _u10)(Doubles x) {
  Doubles bounded = at_least(at_most(x, 710.0), -746.0);
  Doubles shifted = fma(bounded - 0.0588, all(0x1.71547652b82fep+0), all(kDoubleShift));
  Doubles n = shifted - kDoubleShift;
  Doubles r = fma(n, all(-0x1.62e42fefa39efp-1), bounded);
  r = fma(n, all(-0x1.abc9e3b39803fp-56), r);
  Doubles q = polynomial(r, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
                         1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800, 1.0 / 87178291200);
  Doubles fraction = fma(r * r, q, r) + 1.0;
  Longs exponent = integer_of(shifted), half = exponent >> 1;
  return fraction * power_of_two(half) * power_of_two(exponent - half);
}
