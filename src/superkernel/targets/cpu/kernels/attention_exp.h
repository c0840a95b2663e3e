// attention_exp.h: the exponential of vectors, for softmax.
#pragma once

#include "vector.h"

namespace {

SK_INLINE Vector larger(Vector x, Vector y) { return x > y ? x : y; }

// e^x for x <= 0, within about a unit in the last place; 0 below the smallest normal float; NaN stays NaN.
SK_INLINE Vector exponential(Vector x) {
    constexpr float shift = 0x1.8p23f;  // what is left of a sum with it is a whole number
    const Vector shifted = multiply_add(x, broadcast(0x1.715476p0f), broadcast(shift));
    const Vector whole = shifted - shift;
    Vector rest = multiply_add(whole, broadcast(-0x1.62e400p-1f), x);  // ln 2 in two parts
    rest = multiply_add(whole, broadcast(-0x1.7f7d1cp-20f), rest);
    Vector power = broadcast(0x1.6a2352p-10f);
    power = multiply_add(power, rest, broadcast(0x1.123a6cp-7f));
    power = multiply_add(power, rest, broadcast(0x1.5558f4p-5f));
    power = multiply_add(power, rest, broadcast(0x1.555490p-3f));
    power = multiply_add(power, rest, broadcast(0x1.fffffcp-2f));
    power = multiply_add(power, rest, broadcast(1));
    power = multiply_add(power, rest, broadcast(1));
    const Vector two = Vector((Words(shifted) << 23) + (127u << 23));
    return x < -87.33654f ? Vector{} : power * two;
}

SK_INLINE float exponential(float x) { return exponential(broadcast(x))[0]; }

}  // namespace
