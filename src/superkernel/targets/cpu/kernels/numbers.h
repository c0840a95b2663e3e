// numbers.h: elements of any type as numbers to compute with, and back, converted as torch does it.
#pragma once

#include "vector.h"

namespace {

template <class To, class From>
SK_INLINE To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same number of bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// What an element is compared and multiplied as, and what sums of elements are kept in.
template <class T>
struct Kind {
    using Number = T;
    using Sum = uint64_t;  // integers wrap around; signed ones must not in C++, so they are added as unsigned
};
template <>
struct Kind<float> {
    using Number = float;
    using Sum = double;
};
template <>
struct Kind<double> {
    using Number = double;
    using Sum = double;
};
template <>
struct Kind<Float16> {
    using Number = float;
    using Sum = float;
};
template <>
struct Kind<Bfloat16> : Kind<Float16> {};

template <class T>
SK_INLINE T number(T value) {
    return value;
}
SK_INLINE float number(Float16 value) { return to_float(value); }
SK_INLINE float number(Bfloat16 value) { return to_float(value); }

// A number as an element: rounded, cut or wrapped.
template <class To, class From>
SK_INLINE void put(From value, To& to) {
    to = static_cast<To>(value);
}
template <class From>
SK_INLINE void put(From value, Float16& to) {
    from_float(static_cast<float>(value), to);
}
template <class From>
SK_INLINE void put(From value, Bfloat16& to) {
    from_float(static_cast<float>(value), to);
}

template <class T>
SK_INLINE bool is_nan(T value) {
    return value != value;
}

}  // namespace
