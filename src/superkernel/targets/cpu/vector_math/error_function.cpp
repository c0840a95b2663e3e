// erf and erfc of vectors of floats
#include "exponential.h"

using namespace sk_math;

SK_VECTOR_FUNCTION Floats SK_FLOATS(erf, _u10)(Floats x) {
  Floats a = at_most(absolute(x), 3.95f);  // there erf is 1
  Floats t = a * a;
  // up to 0.925: a + a p(a^2); beyond: 1 - e^(a q(a)), as a q(a) is close to log erfc(a); both are minimax fits
  Floats p = polynomial(t, 0.12837917f, -0.3761263f, 0.11283626f, -0.026855731f, 0.005192405f, -0.00080497697f,
                        7.99665e-05f);
  Floats q = polynomial(a, -1.1286485f, -0.6351512f, -0.10623704f, 0.023762183f, -0.0036425057f, 0.00032281232f,
                        -1.123177e-05f);
  Floats far = 1.0f - normal_exp_of_product(a, q);
  return with_sign(a > 0.925f ? far : fma(a, p, a), x);  // NaN takes the near way
}

SK_VECTOR_FUNCTION Floats SK_FLOATS(erfc, _u15)(Floats x) {
  auto erfc = [](Doubles d) {
    Doubles a = at_most(absolute(d), 10.2);  // there erfc is below the smallest float
    // e^(a^2) erfc(a) (1 + 2 a), in a variable between -1 and 0.55: a minimax fit
    Doubles u = (a - 3.0) / (a + 3.0);
    Doubles p = polynomial(u, 1.2530080582779488, -0.13562110640871683, -0.04756229586351004, 0.12964517514972881,
                           -0.11927361118446349, 0.06830777260204987, -0.02377124370407803, 0.0025308541033541676,
                           0.0018934944436163209, -0.0007822039723564671, -0.00011992317473198207,
                           0.00011977047944708684, 2.1751819898274706e-05, -4.03135242299005e-06);
    Doubles upper = exp(-a * a) * p / fma(all(2.0), a, all(1.0));
    return d < 0.0 ? 2.0 - upper : upper;
  };
  return in_double(erfc, x);
}
