// log, log2, log10 and log1p of vectors of floats
#include "logarithm.h"

using namespace sk_math;

SK_VECTOR_FUNCTION Floats SK_FLOATS(log, _u10)(Floats x) {
  Ints tiny = x < 0x1p-126f;
  Floats normal = tiny ? x * 0x1p23f : x;
  Ints exponent = (bits(normal) - 0x3f2aaaab) >> 23;  // the mantissa m is between 2/3 and 4/3
  Floats f = from_bits(bits(normal) - (exponent << 23)) - 1.0f;
  Floats e = __builtin_convertvector(tiny ? exponent - 23 : exponent, Floats);
  // log(1 + f) = f - f^2 / 2 + f^3 r(f); r is a minimax fit
  Floats r = polynomial(f, 0.33333334f, -0.2499982f, 0.19999598f, -0.16679579f, 0.14304455f, -0.12195774f, 0.107542604f,
                        -0.12845077f, 0.120070525f);
  Floats t = f * f;
  Floats rest = fma(e, all(0x1.7f7d1cp-20f), t * fma(f, r, all(-0.5f)));
  // the large part and f are added exactly: sum + lost
  Floats large = e * 0x1.62e4p-1f;
  Floats sum = large + f;
  Floats lost = f - (sum - large);
  Floats result = e == 0.0f ? f + rest : sum + (lost + rest);
  result = x > 0.0f ? result : all(__builtin_nanf(""));
  result = x == 0.0f ? all(-__builtin_inff()) : result;
  return x == __builtin_inff() ? x : result;
}

SK_VECTOR_FUNCTION Floats SK_FLOATS(log2, _u10)(Floats x) {
  return in_double([](Doubles d) { return log2(d); }, x);
}

SK_VECTOR_FUNCTION Floats SK_FLOATS(log10, _u10)(Floats x) {
  return in_double([](Doubles d) { return log(d, d - 1.0, 0x1.bcb7b1526e50ep-2, 0x1.34413509f79ffp-2); }, x);
}

SK_VECTOR_FUNCTION Floats SK_FLOATS(log1p, _u10)(Floats x) {
  Floats y = in_double([](Doubles d) { return log(d + 1.0, d, 1.0, 0x1.62e42fefa39efp-1); }, x);
  return x == 0.0f ? x : y;  // -0 stays
}
