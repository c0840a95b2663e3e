// functions that are computed lane by lane in the C library: the rarer ones of floats, and those of doubles
#include <math.h>

#include "lanes.h"

using namespace sk_math;

namespace {

// lgamma writes a sign to a variable that threads share.
inline double log_gamma(double x) {
  int sign;
  return lgamma_r(x, &sign);
}

template <class Vector, class Function>
inline Vector each(int lanes, Function function, Vector x) {
  for (int lane = 0; lane < lanes; ++lane) x[lane] = function(x[lane]);
  return x;
}

template <class Vector, class Function>
inline Vector each(int lanes, Function function, Vector x, Vector y) {
  for (int lane = 0; lane < lanes; ++lane) x[lane] = function(x[lane], y[lane]);
  return x;
}

}  // namespace

// Computed in double, a function of floats is rounded once.
#define SK_FLOAT_LANES_OF(name, function) \
  SK_VECTOR_FUNCTION Floats SK_FLOATS(name, _u10)(Floats x) { \
    return each(SK_FLOAT_LANES, [](float lane) { return static_cast<float>(function(static_cast<double>(lane))); }, x); \
  }
#define SK_DOUBLE_LANES_OF(name, accuracy, function) \
  SK_VECTOR_FUNCTION Doubles SK_DOUBLES(name, accuracy)(Doubles x) { \
    return each(SK_DOUBLE_LANES, [](double lane) { return function(lane); }, x); \
  }
#define SK_DOUBLE_PAIRS_OF(name, accuracy, function) \
  SK_VECTOR_FUNCTION Doubles SK_DOUBLES(name, accuracy)(Doubles x, Doubles y) { \
    return each(SK_DOUBLE_LANES, [](double a, double b) { return function(a, b); }, x, y); \
  }

SK_FLOAT_LANES_OF(acosh, ::acosh)
SK_FLOAT_LANES_OF(asinh, ::asinh)
SK_FLOAT_LANES_OF(atanh, ::atanh)
SK_FLOAT_LANES_OF(lgamma, log_gamma)

SK_VECTOR_FUNCTION Floats SK_FLOATS(fmod, )(Floats x, Floats y) { return each(SK_FLOAT_LANES, ::fmodf, x, y); }
SK_VECTOR_FUNCTION Floats SK_FLOATS(nextafter, )(Floats x, Floats y) {
  return each(SK_FLOAT_LANES, ::nextafterf, x, y);
}
SK_VECTOR_FUNCTION Floats SK_FLOATS(copysign, )(Floats x, Floats y) { return with_sign(absolute(x), y); }

SK_DOUBLE_LANES_OF(acos, _u10, ::acos)
SK_DOUBLE_LANES_OF(acosh, _u10, ::acosh)
SK_DOUBLE_LANES_OF(asin, _u10, ::asin)
SK_DOUBLE_LANES_OF(asinh, _u10, ::asinh)
SK_DOUBLE_LANES_OF(atan, _u10, ::atan)
SK_DOUBLE_LANES_OF(atanh, _u10, ::atanh)
SK_DOUBLE_LANES_OF(cos, _u10, ::cos)
SK_DOUBLE_LANES_OF(cosh, _u10, ::cosh)
SK_DOUBLE_LANES_OF(erf, _u10, ::erf)
SK_DOUBLE_LANES_OF(erfc, _u15, ::erfc)
SK_DOUBLE_LANES_OF(exp2, _u10, ::exp2)
SK_DOUBLE_LANES_OF(expm1, _u10, ::expm1)
SK_DOUBLE_LANES_OF(lgamma, _u10, log_gamma)
SK_DOUBLE_LANES_OF(log, _u10, ::log)
SK_DOUBLE_LANES_OF(log10, _u10, ::log10)
SK_DOUBLE_LANES_OF(log1p, _u10, ::log1p)
SK_DOUBLE_LANES_OF(log2, _u10, ::log2)
SK_DOUBLE_LANES_OF(sin, _u10, ::sin)
SK_DOUBLE_LANES_OF(sinh, _u10, ::sinh)
SK_DOUBLE_LANES_OF(tan, _u10, ::tan)
SK_DOUBLE_LANES_OF(tanh, _u10, ::tanh)
SK_DOUBLE_PAIRS_OF(atan2, _u10, ::atan2)
SK_DOUBLE_PAIRS_OF(fmod, , ::fmod)
SK_DOUBLE_PAIRS_OF(hypot, _u05, ::hypot)
SK_DOUBLE_PAIRS_OF(nextafter, , ::nextafter)
SK_DOUBLE_PAIRS_OF(pow, _u10, ::pow)
SK_VECTOR_FUNCTION Doubles SK_DOUBLES(copysign, )(Doubles x, Doubles y) { return with_sign(absolute(x), y); }

struct SineAndCosine {
  Doubles sine, cosine;
};
SK_VECTOR_FUNCTION SineAndCosine SK_DOUBLES(sincos, _u10)(Doubles x) {
  return {each(SK_DOUBLE_LANES, [](double lane) { return ::sin(lane); }, x),
          each(SK_DOUBLE_LANES, [](double lane) { return ::cos(lane); }, x)};
}
