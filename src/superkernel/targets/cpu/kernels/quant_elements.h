// quant_elements.h: element types that are known when a kernel runs: read to floats or doubles, rounded from floats.
#pragma once

#include "vector.h"

namespace {

// The numbers by which Python names them.
enum class DType : int64_t { kNone = 0, kFloat32, kBfloat16, kFloat16, kInt32, kInt8 };

// To the nearest, ties to even; what is too large becomes the largest; NaN becomes 0.
SK_INLINE void from_float(float value, int8_t& to) {
    const float nearest = __builtin_rintf(value);
    const float low = nearest < -128 ? -128 : nearest, bounded = low > 127 ? 127 : low;
    to = int8_t(value == value ? bounded : 0);
}
SK_INLINE void from_double(double value, int8_t& to) {
    const double nearest = __builtin_rint(value);
    const double low = nearest < -128 ? -128 : nearest, bounded = low > 127 ? 127 : low;
    to = int8_t(value == value ? bounded : 0);
}

SK_INLINE float to_float(int32_t value) { return float(value); }
SK_INLINE double to_double(float value) { return value; }
SK_INLINE double to_double(Bfloat16 value) { return to_float(value); }
SK_INLINE double to_double(Float16 value) { return to_float(value); }
SK_INLINE double to_double(int32_t value) { return value; }

template <class T>
SK_INLINE void read_floats(const T* from, int64_t step, int64_t count, float* to) {
    if (step == 1)
        for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
    else
        for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i * step]);
}

template <class T>
SK_INLINE void read_doubles(const T* from, int64_t step, int64_t count, double* to) {
    if (step == 1)
        for (int64_t i = 0; i < count; ++i) to[i] = to_double(from[i]);
    else
        for (int64_t i = 0; i < count; ++i) to[i] = to_double(from[i * step]);
}

// `count` elements from the index `first` on, `step` apart.
SK_NOINLINE void read_floats(DType dtype, const void* from, int64_t first, int64_t step, int64_t count, float* to) {
    switch (dtype) {
        case DType::kBfloat16: return read_floats(static_cast<const Bfloat16*>(from) + first, step, count, to);
        case DType::kFloat16: return read_floats(static_cast<const Float16*>(from) + first, step, count, to);
        case DType::kInt32: return read_floats(static_cast<const int32_t*>(from) + first, step, count, to);
        default: return read_floats(static_cast<const float*>(from) + first, step, count, to);
    }
}

SK_NOINLINE void read_doubles(DType dtype, const void* from, int64_t first, int64_t step, int64_t count, double* to) {
    switch (dtype) {
        case DType::kBfloat16: return read_doubles(static_cast<const Bfloat16*>(from) + first, step, count, to);
        case DType::kFloat16: return read_doubles(static_cast<const Float16*>(from) + first, step, count, to);
        case DType::kInt32: return read_doubles(static_cast<const int32_t*>(from) + first, step, count, to);
        default: return read_doubles(static_cast<const float*>(from) + first, step, count, to);
    }
}

template <class T>
SK_INLINE void write_floats(const float* from, int64_t count, T* to) {
    for (int64_t i = 0; i < count; ++i) from_float(from[i], to[i]);
}

// `count` elements side by side, from the index `first` on.
SK_NOINLINE void write_floats(DType dtype, const float* from, int64_t count, void* to, int64_t first) {
    switch (dtype) {
        case DType::kBfloat16: return write_floats(from, count, static_cast<Bfloat16*>(to) + first);
        case DType::kFloat16: return write_floats(from, count, static_cast<Float16*>(to) + first);
        case DType::kInt8: return write_floats(from, count, static_cast<int8_t*>(to) + first);
        default: return write_floats(from, count, static_cast<float*>(to) + first);
    }
}

}  // namespace
