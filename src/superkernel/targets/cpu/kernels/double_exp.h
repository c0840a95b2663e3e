// double_exp.h: e to the power of x for vectors of doubles, to about one unit in the last place.
#pragma once

#include "vector.h"

namespace {

constexpr int kDoubles = kLanes / 2;
typedef double Doubles __attribute__((vector_size(kVectorBytes)));
typedef double AnyDoubles __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
typedef int64_t Longs __attribute__((vector_size(kVectorBytes)));

SK_INLINE Doubles load_doubles(const double* at) { return *reinterpret_cast<const AnyDoubles*>(at); }
SK_INLINE void store_doubles(double* at, Doubles value) { *reinterpret_cast<AnyDoubles*>(at) = value; }

SK_INLINE Doubles choose(Longs condition, Doubles yes, Doubles no) {
    return Doubles((condition & Longs(yes)) | (~condition & Longs(no)));
}

// x = n * ln 2 + r, |r| <= ln 2 / 2; the power series of r to its 13th term; times 2**n in two steps, because 2**n
// alone may be too large or too small.
SK_INLINE Doubles exp(Doubles x) {
    constexpr double shift = 0x1.8p52, largest = 709.8, smallest = -746;
    const Longs is_nan = x != x, above = x > largest, below = x < smallest;
    Doubles inside = choose(is_nan | above | below, Doubles{}, x);
    Doubles turns = inside * 0x1.71547652b82fep+0 + shift;
    const Longs n = Longs(turns) - Longs(shift - Doubles{});
    turns -= shift;
    Doubles r = inside - turns * 0x1.62e42fefa3800p-1;  // the first 42 bits of ln 2: times n this is exact
    r -= turns * 0x1.ef35793c76730p-45;
    Doubles sum = r * (1.0 / 6227020800) + 1.0 / 479001600;
    sum = sum * r + 1.0 / 39916800;
    sum = sum * r + 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = r + r * r * sum + 1.0;
    const Longs half = n >> 1;
    sum *= Doubles((half + 1023) << 52);
    sum *= Doubles((n - half + 1023) << 52);
    sum = choose(above, __builtin_inf() - Doubles{}, choose(below, Doubles{}, sum));
    return choose(is_nan, x, sum);
}

}  // namespace
