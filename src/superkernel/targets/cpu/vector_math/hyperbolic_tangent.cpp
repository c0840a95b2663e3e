// tanh of vectors of floats
#include "exponential.h"

using namespace sk_math;

SK_VECTOR_FUNCTION Floats SK_FLOATS(tanh, _u10)(Floats x) {
  Floats a = at_most(absolute(x), 10.0f);  // there tanh is 1
  Floats t = a * a;
  // up to 1: a + a^3 p(a^2), p is a minimax fit
  Floats p = polynomial(t, -0.33333328f, 0.133332f, -0.053953096f, 0.02178473f, -0.008595112f, 0.0030785904f,
                        -0.00084113487f, 0.00012147014f);
  Floats near = fma(a * t, p, a);
  Floats far = 1.0f - 2.0f / (normal_exp(a + a) + 1.0f);
  return with_sign(a > 1.0f ? far : near, x);  // NaN takes the near way
}
