// sin and cos of vectors of floats
#include <cmath>

#include "lanes.h"

using namespace sk_math;

namespace {

constexpr float kLargest = 131072.0f;  // beyond, lanes are computed by the C library

struct Reduced {
  Floats r, rest;  // x - n pi/2, as a sum
  Ints quarter;    // n
};

inline Reduced reduced(Floats x) {
  Floats shifted = fma(x, all(0x1.45f306p-1f), all(kFloatShift));
  Floats n = shifted - kFloatShift;
  // pi/2 in three parts. The first difference is exact: n times the first part and x are multiples of 2^-24.
  Floats r = fma(n, all(-0x1.921fb6p+0f), x);
  Floats second = n * 0x1.777a5cp-25f;
  Floats second_rest = fma(n, all(0x1.777a5cp-25f), -second);
  // r + second, and what its rounding loses
  Floats sum = r + second;
  Floats added = sum - r;
  Floats lost = (r - (sum - added)) + (second - added);
  return {sum, fma(n, all(0x1.ee59dap-50f), lost + second_rest), integer_of(shifted)};
}

inline Floats sine(Reduced x) {
  Floats t = x.r * x.r;
  Floats p = polynomial(t, -0.16666655f, 0.008332169f, -0.00019515985f);
  return x.r + fma(x.r * t, p, x.rest);
}

inline Floats cosine(Reduced x) {
  Floats t = x.r * x.r;
  Floats q = polynomial(t, 0.041666646f, -0.0013887355f, 2.4436977e-05f);
  Floats half = 0.5f * t;
  Floats head = 1.0f - half;
  Floats lost = (1.0f - head) - half;
  return head + (lost + fma(t * t, q, -x.r * x.rest));
}

// sin(x + quarters pi/2)
template <class Exact>
inline Floats shifted_sine(Floats x, int quarters, Exact exact) {
  Reduced a = reduced(x);
  Ints quarter = a.quarter + quarters;
  Floats y = (quarter & 1) != 0 ? cosine(a) : sine(a);
  y = from_bits(bits(y) ^ ((quarter & 2) << 30));
  Ints large = ~(absolute(x) <= kLargest);
  if (__builtin_expect(any(large), 0)) {
    for (int lane = 0; lane < SK_FLOAT_LANES; ++lane) {
      if (large[lane]) y[lane] = static_cast<float>(exact(static_cast<double>(x[lane])));
    }
  }
  return y;
}

inline Floats sin(Floats x) {
  Floats y = shifted_sine(x, 0, [](double d) { return std::sin(d); });
  return x == 0.0f ? x : y;  // -0 stays
}
inline Floats cos(Floats x) {
  return shifted_sine(x, 1, [](double d) { return std::cos(d); });
}

}  // namespace

SK_VECTOR_FUNCTION Floats SK_FLOATS(sin, _u10)(Floats x) { return sin(x); }
SK_VECTOR_FUNCTION Floats SK_FLOATS(sin, _u35)(Floats x) { return sin(x); }
SK_VECTOR_FUNCTION Floats SK_FLOATS(cos, _u10)(Floats x) { return cos(x); }
SK_VECTOR_FUNCTION Floats SK_FLOATS(cos, _u35)(Floats x) { return cos(x); }

struct SineAndCosine {
  Floats sine, cosine;
};
SK_VECTOR_FUNCTION SineAndCosine SK_FLOATS(sincos, _u10)(Floats x) { return {sin(x), cos(x)}; }
