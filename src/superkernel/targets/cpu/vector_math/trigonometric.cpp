// tan, asin, acos, atan and atan2 of vectors of floats, computed in double; the polynomials are minimax fits
#include <cmath>

#include "lanes.h"

using namespace sk_math;

namespace {

constexpr double kPi = 0x1.921fb54442d18p+1, kHalfPi = 0x1.921fb54442d18p+0, kHalfPiRest = 0x1.1a62633145c07p-54;
constexpr float kLargest = 0x1p30f;  // beyond, tan is computed by the C library

inline Doubles tangent(Doubles x) {
  Doubles shifted = fma(x, all(0x1.45f306dc9c883p-1), all(kDoubleShift));
  Doubles n = shifted - kDoubleShift;
  Doubles r = fma(n, all(-kHalfPiRest), fma(n, all(-kHalfPi), x));
  Doubles t = r * r;
  Doubles sine = fma(
      r * t, polynomial(t, -0.16666666641600533, 0.008333329382835162, -0.000198393338424956, 2.718301928749105e-06), r);
  Doubles cosine =
      fma(t * t, polynomial(t, 0.04166666662278105, -0.0013888883749310198, 2.4799518915125094e-05, -2.7210146511316554e-07),
          fma(all(-0.5), t, all(1.0)));
  Longs odd = (bits(shifted) & 1) != 0;
  return (odd ? -cosine : sine) / (odd ? sine : cosine);
}

// of a number between 0 and 1
inline Doubles small_arctangent(Doubles z) {
  Doubles p = polynomial(z * z, 0.9999999999916309, -0.3333333303361052, 0.19999982191420246, -0.14285296792876717,
                         0.11105986911638537, -0.09053018538173278, 0.07509014922096238, -0.06054649082727922,
                         0.04415778153331197, -0.026538137272655277, 0.011779088910019166, -0.003328822710514352,
                         0.00044138717635733066);
  return z * p;
}

inline Doubles arctangent(Doubles x) {
  Doubles a = absolute(x);
  Longs large = a > 1.0;
  Doubles small = small_arctangent(large ? 1.0 / a : a);
  return with_sign(large ? kHalfPi - small : small, x);
}

// the angle of the point (x, y)
inline Doubles angle(Doubles y, Doubles x) {
  Doubles a = absolute(y), b = absolute(x);
  Longs steep = a > b;
  Doubles ratio = steep ? b / a : a / b;
  ratio = a == b ? (a == 0.0 ? Doubles{} : all(1.0)) : ratio;  // both zero, or both infinite
  Doubles found = small_arctangent(ratio);
  found = steep ? kHalfPi - found : found;
  found = bits(x) < 0 ? kPi - found : found;
  Longs unknown = (x != x) | (y != y);
  return unknown != 0 ? x + y : with_sign(found, y);
}

// asin(z) of z = sqrt(t) between 0 and 1/2
inline Doubles small_arcsine(Doubles z, Doubles t) {
  Doubles p = polynomial(t, 0.16666666626724735, 0.07500005042040686, 0.044640687723262615, 0.030426842387666686,
                         0.021863004569209633, 0.020659054790382388, 0.0019484188848666148, 0.032941785895189785);
  return fma(z * t, p, z);
}

// asin(a) of a small a; acos(a) of a large one, which is twice the arcsine of the half chord
struct Arc {
  Doubles value;
  Longs large;
};

inline Arc arc(Doubles a) {
  Longs large = a > 0.5;
  Doubles t = large ? 0.5 * (1.0 - a) : a * a;
  Doubles small = small_arcsine(large ? square_root(t) : a, t);  // NaN above 1
  return {large ? small + small : small, large};
}

inline Doubles arcsine(Doubles x) {
  Arc found = arc(absolute(x));
  return with_sign(found.large ? kHalfPi - found.value : found.value, x);
}

inline Doubles arccosine(Doubles x) {
  Arc found = arc(absolute(x));
  Longs negative = x < 0.0;
  Doubles large = negative ? kPi - found.value : found.value;
  return found.large ? large : (negative ? kHalfPi + found.value : kHalfPi - found.value);
}

}  // namespace

SK_VECTOR_FUNCTION Floats SK_FLOATS(tan, _u10)(Floats x) {
  Floats y = in_double(tangent, x);
  y = x == 0.0f ? x : y;  // -0 stays
  Ints large = ~(absolute(x) <= kLargest);
  if (__builtin_expect(any(large), 0)) {
    for (int lane = 0; lane < SK_FLOAT_LANES; ++lane) {
      if (large[lane]) y[lane] = static_cast<float>(std::tan(static_cast<double>(x[lane])));
    }
  }
  return y;
}
SK_VECTOR_FUNCTION Floats SK_FLOATS(asin, _u10)(Floats x) { return in_double(arcsine, x); }
SK_VECTOR_FUNCTION Floats SK_FLOATS(acos, _u10)(Floats x) { return in_double(arccosine, x); }
SK_VECTOR_FUNCTION Floats SK_FLOATS(atan, _u10)(Floats x) { return in_double(arctangent, x); }
SK_VECTOR_FUNCTION Floats SK_FLOATS(atan2, _u10)(Floats y, Floats x) { return in_double(angle, y, x); }
