// sleef.h: before that of torch, which on x86-64 lacks the functions of NEON vectors that torch's headers call.
//
// Their definitions are ours: see vector_math/. Declared are those that vector_functions.py lists.
#pragma once

#include_next <sleef.h>

#if defined(__aarch64__)
#include <arm_neon.h>

#define SK_UNARY(name, accuracy)                                  \
    extern "C" float32x4_t Sleef_##name##f4##accuracy(float32x4_t); \
    extern "C" float64x2_t Sleef_##name##d2##accuracy(float64x2_t);
#define SK_BINARY(name, accuracy)                                              \
    extern "C" float32x4_t Sleef_##name##f4##accuracy(float32x4_t, float32x4_t); \
    extern "C" float64x2_t Sleef_##name##d2##accuracy(float64x2_t, float64x2_t);

SK_UNARY(exp, _u10) SK_UNARY(exp2, _u10) SK_UNARY(expm1, _u10) SK_UNARY(cosh, _u10) SK_UNARY(sinh, _u10)
SK_UNARY(log, _u10) SK_UNARY(log2, _u10) SK_UNARY(log10, _u10) SK_UNARY(log1p, _u10) SK_UNARY(tanh, _u10)
SK_UNARY(erf, _u10) SK_UNARY(erfc, _u15) SK_UNARY(sin, _u10) SK_UNARY(cos, _u10) SK_UNARY(tan, _u10)
SK_UNARY(asin, _u10) SK_UNARY(acos, _u10) SK_UNARY(atan, _u10) SK_UNARY(acosh, _u10) SK_UNARY(asinh, _u10)
SK_UNARY(atanh, _u10) SK_UNARY(lgamma, _u10)
SK_BINARY(pow, _u10) SK_BINARY(hypot, _u05) SK_BINARY(atan2, _u10) SK_BINARY(copysign, ) SK_BINARY(fmod, )
SK_BINARY(nextafter, )

#undef SK_UNARY
#undef SK_BINARY
#endif
