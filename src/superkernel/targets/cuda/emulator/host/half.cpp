// half.cpp: arithmetic of 16-bit floating-point numbers, single and in pairs.
#include "numbers.h"

#include "machine.h"

namespace ptx {

namespace {

template <class T> bool is_nan(T x) { return (x.bits & 0x7FFF) > Limits16<T>::exponent; }
template <class T> T flushed16(T x) { return x.bits & Limits16<T>::exponent ? x : T{uint16_t(x.bits & 0x8000)}; }
template <class T> T canonical() { return T{Limits16<T>::nan}; }
template <class T> T rounded(double value) { return from_double<T>(value); }

template <class T> T add(T a, T b) { return rounded<T>(fused_odd(to_float(a), 1.0, to_float(b))); }
template <class T> T subtract(T a, T b) { return rounded<T>(fused_odd(to_float(a), 1.0, -to_float(b))); }
template <class T> T multiply(T a, T b) { return rounded<T>(double(to_float(a)) * to_float(b)); }
template <class T> T fused(T a, T b, T c) { return rounded<T>(fused_odd(to_float(a), to_float(b), to_float(c))); }
template <class T> T negative(T a) { return T{uint16_t(a.bits ^ 0x8000)}; }
template <class T> T absolute(T a) { return T{uint16_t(a.bits & 0x7FFF)}; }
template <class T> T smaller(T a, T b) {
    if (is_nan(a)) return is_nan(b) ? canonical<T>() : b;
    if (is_nan(b)) return a;
    float x = to_float(a), y = to_float(b);
    return x == y ? (a.bits & 0x8000 ? a : b) : x < y ? a : b;
}
template <class T> T larger(T a, T b) {
    if (is_nan(a)) return is_nan(b) ? canonical<T>() : b;
    if (is_nan(b)) return a;
    float x = to_float(a), y = to_float(b);
    return x == y ? (a.bits & 0x8000 ? b : a) : x < y ? b : a;
}
template <class T> T smaller_nan(T a, T b) { return is_nan(a) || is_nan(b) ? canonical<T>() : smaller<T>(a, b); }
template <class T> T larger_nan(T a, T b) { return is_nan(a) || is_nan(b) ? canonical<T>() : larger<T>(a, b); }
template <class T> T exponential(T a) { return rounded<T>(std::exp2(double(to_float(a)))); }
template <class T> T hyperbolic_tangent(T a) { return rounded<T>(std::tanh(double(to_float(a)))); }
template <class T> T saturated(T a) {
    float x = to_float(a);
    return !(x > 0) ? T{0} : x > 1 ? rounded<T>(1.0) : a;
}
template <class T> T positive(T a) { return is_nan(a) ? canonical<T>() : a.bits & 0x8000 ? T{0} : a; }

// The same function on both halves of a 32-bit register.
template <class T, auto Function> uint32_t pair1(uint32_t a) {
    uint32_t low = Function(T{uint16_t(a)}).bits, high = Function(T{uint16_t(a >> 16)}).bits;
    return low | high << 16;
}
template <class T, auto Function> uint32_t pair2(uint32_t a, uint32_t b) {
    uint32_t low = Function(T{uint16_t(a)}, T{uint16_t(b)}).bits, high = Function(T{uint16_t(a >> 16)}, T{uint16_t(b >> 16)}).bits;
    return low | high << 16;
}
template <class T, auto Function> uint32_t pair3(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t low = Function(T{uint16_t(a)}, T{uint16_t(b)}, T{uint16_t(c)}).bits;
    uint32_t high = Function(T{uint16_t(a >> 16)}, T{uint16_t(b >> 16)}, T{uint16_t(c >> 16)}).bits;
    return low | high << 16;
}

}  // namespace

void add_half(std::vector<HandlerEntry>& table) {
#define ONE(name, function, f, T)                                                                                      \
    {name "." f, &unary<T, T, function<T>>}, {name "." f "x2", &unary<uint32_t, uint32_t, pair1<T, function<T>>>}
#define TWO(name, function, f, T)                                                                                      \
    {name "." f, &binary<T, T, T, function<T>>}, {name "." f "x2", &binary<uint32_t, uint32_t, uint32_t, pair2<T, function<T>>>}
#define THREE(name, function, f, T)                                                                                    \
    {name "." f, &ternary<T, T, T, T, function<T>>},                                                                    \
    {name "." f "x2", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, pair3<T, function<T>>>}
#define FORMAT(f, T)                                                                                                   \
    TWO("add", add, f, T), TWO("sub", subtract, f, T), TWO("mul", multiply, f, T), THREE("fma", fused, f, T),           \
    ONE("neg", negative, f, T), ONE("abs", absolute, f, T), TWO("min", smaller, f, T), TWO("max", larger, f, T),        \
    TWO("min.NaN", smaller_nan, f, T), TWO("max.NaN", larger_nan, f, T), ONE("ex2", exponential, f, T),                 \
    ONE("tanh", hyperbolic_tangent, f, T), ONE("sat", saturated, f, T), ONE("relu", positive, f, T),                    \
    ONE("flush", flushed16, f, T)
    table.insert(table.end(), {FORMAT("f16", Half), FORMAT("bf16", Bfloat)});
}

}  // namespace ptx
