// floating.cpp: arithmetic and comparison of 32-bit and 64-bit floating-point numbers.
//
// Functions that the GPU approximates are computed by the host's library: results are not the GPU's bits, but the same
// in every emulated launch.
#include "numbers.h"

#include "machine.h"

namespace ptx {

namespace {

template <bool Flush, class T> T in(T x) {
    if constexpr (Flush) return flushed(x);
    else return x;
}

#define BINARY(name, expression)                                                                                       \
    template <class T, bool Flush> T name(T a, T b) {                                                                  \
        a = in<Flush>(a), b = in<Flush>(b);                                                                            \
        return in<Flush>(T(expression));                                                                               \
    }
#define UNARY(name, expression)                                                                                        \
    template <class T, bool Flush> T name(T a) {                                                                       \
        a = in<Flush>(a);                                                                                              \
        return in<Flush>(T(expression));                                                                               \
    }

template <class T> T canonical_nan() {
    if constexpr (sizeof(T) == 4) return bits_as<T>(uint32_t(0x7FFFFFFF));
    else return bits_as<T>(uint64_t(0x7FFFFFFFFFFFFFFF));
}
template <class T> T smaller(T a, T b) {
    if (std::isnan(a)) return std::isnan(b) ? canonical_nan<T>() : b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
}
template <class T> T larger(T a, T b) {
    if (std::isnan(a)) return std::isnan(b) ? canonical_nan<T>() : b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) ? b : a;
    return a < b ? b : a;
}

BINARY(add, a + b)
BINARY(subtract, a - b)
BINARY(multiply, a * b)
BINARY(divide, a / b)
BINARY(minimum, smaller<T>(a, b))
BINARY(maximum, larger<T>(a, b))
BINARY(minimum_nan, std::isnan(a) || std::isnan(b) ? canonical_nan<T>() : smaller<T>(a, b))
BINARY(maximum_nan, std::isnan(a) || std::isnan(b) ? canonical_nan<T>() : larger<T>(a, b))
UNARY(negative, -a)
UNARY(absolute, std::fabs(a))
UNARY(square_root, std::sqrt(a))
UNARY(reciprocal, T(1) / a)
UNARY(reciprocal_root, T(1.0 / std::sqrt(double(a))))
UNARY(exponential, std::exp2(a))
UNARY(logarithm, std::log2(a))
UNARY(sine, std::sin(a))
UNARY(cosine, std::cos(a))
UNARY(hyperbolic_tangent, std::tanh(a))
template <class T, bool Flush> T fused(T a, T b, T c) { return in<Flush>(std::fma(in<Flush>(a), in<Flush>(b), in<Flush>(c))); }
template <class T> T copied_sign(T a, T b) { return std::copysign(b, a); }
template <class T> T saturated(T a) { return !(a > T(0)) ? T(0) : a > T(1) ? T(1) : a; }

// Operations in a rounding mode other than to nearest: 0 add, 1 sub, 2 mul, 3 fma, 4 div, 5 sqrt, 6 rcp
template <class T, int Operation, Rounding Mode, bool Flush>
void rounded(Warp& warp, const Instruction& i, uint32_t mask) {
    using Word = typename Lane<T>::Word;
    constexpr bool two = Operation != 5 && Operation != 6, three = Operation == 3;
    auto *d = warp.lanes<Word>(i.operands[0]), *x = warp.lanes<Word>(i.operands[1]);
    auto* y = two ? warp.lanes<Word>(i.operands[2]) : x;
    auto* z = three ? warp.lanes<Word>(i.operands[3]) : x;
    RoundingScope scope(Mode);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        volatile T a = in<Flush>(Lane<T>::get(x[l])), b = in<Flush>(Lane<T>::get(y[l])), c = in<Flush>(Lane<T>::get(z[l]));
        volatile T r;
        switch (Operation) {
            case 0: r = a + b; break;
            case 1: r = a - b; break;
            case 2: r = a * b; break;
            case 3: r = std::fma(T(a), T(b), T(c)); break;
            case 4: r = a / b; break;
            case 5: r = std::sqrt(T(a)); break;
            default: r = T(1) / a; break;
        }
        d[l] = Lane<T>::put(in<Flush>(T(r)));
    }
}

// Comparisons: 0 eq, 1 ne, 2 lt, 3 le, 4 gt, 5 ge; the same with +6 hold for unordered operands too; 12 num, 13 nan
template <int Comparison, class T> bool compare(T a, T b) {
    bool unordered = std::isnan(a) || std::isnan(b);
    if (Comparison == 12) return !unordered;
    if (Comparison == 13) return unordered;
    if (unordered) return Comparison >= 6;
    switch (Comparison % 6) {
        case 0: return a == b;
        case 1: return a != b;
        case 2: return a < b;
        case 3: return a <= b;
        case 4: return a > b;
        default: return a >= b;
    }
}

template <class T, int Comparison, bool Flush>
void set_predicate(Warp& warp, const Instruction& i, uint32_t mask) {
    using Word = typename Lane<T>::Word;
    auto *a = warp.lanes<Word>(i.operands[1]), *b = warp.lanes<Word>(i.operands[2]);
    uint32_t found = 0;
    for (int l = 0; l < kLanes; ++l) {
        auto x = to_float(Lane<T>::get(a[l])), y = to_float(Lane<T>::get(b[l]));
        found |= uint32_t(compare<Comparison>(in<Flush>(x), in<Flush>(y))) << l;
    }
    uint32_t& p = warp.predicate(i.operands[0]);
    p = (p & ~mask) | (found & mask);
}

template <class T, int Kind>  // 0 finite, 1 infinite, 2 number, 3 notanumber, 4 normal, 5 subnormal
void test(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* a = warp.lanes<typename Lane<T>::Word>(i.operands[1]);
    uint32_t found = 0;
    for (int l = 0; l < kLanes; ++l) {
        T x = Lane<T>::get(a[l]);
        int sort = std::fpclassify(x);
        bool is = Kind == 0   ? std::isfinite(x)
                  : Kind == 1 ? std::isinf(x)
                  : Kind == 2 ? !std::isnan(x)
                  : Kind == 3 ? std::isnan(x)
                  : Kind == 4 ? sort == FP_NORMAL
                              : sort == FP_SUBNORMAL;
        found |= uint32_t(is) << l;
    }
    uint32_t& p = warp.predicate(i.operands[0]);
    p = (p & ~mask) | (found & mask);
}

}  // namespace

void add_floating(std::vector<HandlerEntry>& table) {
#define B(name, function, f, T, Flush) {name f, &binary<T, T, T, function<T, Flush>>}
#define U(name, function, f, T, Flush) {name f, &unary<T, T, function<T, Flush>>}
#define ARITHMETIC(f, T, Flush)                                                                                        \
    B("add", add, f, T, Flush), B("sub", subtract, f, T, Flush), B("mul", multiply, f, T, Flush),                       \
    B("div", divide, f, T, Flush), B("min", minimum, f, T, Flush), B("max", maximum, f, T, Flush),                      \
    B("min.NaN", minimum_nan, f, T, Flush), B("max.NaN", maximum_nan, f, T, Flush), U("neg", negative, f, T, Flush),    \
    U("abs", absolute, f, T, Flush), U("sqrt", square_root, f, T, Flush), U("rcp", reciprocal, f, T, Flush),            \
    U("rsqrt", reciprocal_root, f, T, Flush), {"fma" f, &ternary<T, T, T, T, fused<T, Flush>>}
    table.insert(table.end(), {ARITHMETIC(".f32", float, false), ARITHMETIC(".ftz.f32", float, true), ARITHMETIC(".f64", double, false)});
#define APPROXIMATE(f, Flush)                                                                                          \
    U("ex2", exponential, f, float, Flush), U("lg2", logarithm, f, float, Flush), U("sin", sine, f, float, Flush),      \
    U("cos", cosine, f, float, Flush), U("tanh", hyperbolic_tangent, f, float, Flush)
    table.insert(table.end(), {APPROXIMATE(".f32", false), APPROXIMATE(".ftz.f32", true)});
#define R(name, operation, m, Mode, f, T, Flush) {name m f, &rounded<T, operation, Rounding::Mode, Flush>}
#define ROUNDED(m, Mode, f, T, Flush)                                                                                  \
    R("add", 0, m, Mode, f, T, Flush), R("sub", 1, m, Mode, f, T, Flush), R("mul", 2, m, Mode, f, T, Flush),            \
    R("fma", 3, m, Mode, f, T, Flush), R("div", 4, m, Mode, f, T, Flush), R("sqrt", 5, m, Mode, f, T, Flush),           \
    R("rcp", 6, m, Mode, f, T, Flush)
#define MODES(f, T, Flush) ROUNDED(".rz", zero, f, T, Flush), ROUNDED(".rm", down, f, T, Flush), ROUNDED(".rp", up, f, T, Flush)
    table.insert(table.end(), {MODES(".f32", float, false), MODES(".ftz.f32", float, true), MODES(".f64", double, false)});
#define C(name, number, f, T, Flush) {"setp." name f, &set_predicate<T, number, Flush>}
#define COMPARISONS(f, T, Flush)                                                                                       \
    C("eq", 0, f, T, Flush), C("ne", 1, f, T, Flush), C("lt", 2, f, T, Flush), C("le", 3, f, T, Flush),                 \
    C("gt", 4, f, T, Flush), C("ge", 5, f, T, Flush), C("equ", 6, f, T, Flush), C("neu", 7, f, T, Flush),               \
    C("ltu", 8, f, T, Flush), C("leu", 9, f, T, Flush), C("gtu", 10, f, T, Flush), C("geu", 11, f, T, Flush),           \
    C("num", 12, f, T, Flush), C("nan", 13, f, T, Flush)
    table.insert(table.end(), {COMPARISONS(".f32", float, false), COMPARISONS(".ftz.f32", float, true)});
    table.insert(table.end(), {COMPARISONS(".f64", double, false), COMPARISONS(".f16", Half, false), COMPARISONS(".bf16", Bfloat, false)});
#define TEST(name, number) {"testp." name ".f32", &test<float, number>}, {"testp." name ".f64", &test<double, number>}
    table.insert(table.end(), {TEST("finite", 0), TEST("infinite", 1), TEST("number", 2), TEST("notanumber", 3), TEST("normal", 4), TEST("subnormal", 5)});
    table.insert(table.end(), {
        {"copysign.f32", &binary<float, float, float, copied_sign<float>>},
        {"copysign.f64", &binary<double, double, double, copied_sign<double>>},
        {"sat.f32", &unary<float, float, saturated<float>>}, {"sat.f64", &unary<double, double, saturated<double>>},
    });
}

}  // namespace ptx
