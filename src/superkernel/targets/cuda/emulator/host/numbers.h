// numbers.h: floating-point formats of the GPU as host values: 16 and 8 bits wide, TF32; rounding modes; flushing.
#pragma once
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace ptx {

struct Half { uint16_t bits; };
struct Bfloat { uint16_t bits; };

enum class Rounding { nearest, zero, down, up };

template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// A value in a format with so many bits of exponent and mantissa, rounded once. Too large: infinity, or the largest
// finite value where the mode or `finite` says so.
inline uint32_t encode(double value, int exponent_bits, int mantissa_bits, Rounding mode, bool finite = false) {
    uint64_t raw = bits_as<uint64_t>(value);
    uint32_t sign = uint32_t(raw >> 63) << (exponent_bits + mantissa_bits);
    int bias = (1 << (exponent_bits - 1)) - 1;
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    if (std::isnan(value)) return infinity | ((1u << mantissa_bits) - 1);
    if (std::isinf(value)) return sign | (finite ? infinity - 1 : infinity);
    double magnitude = std::fabs(value);
    if (magnitude == 0) return sign;
    int exponent;
    std::frexp(magnitude, &exponent);
    exponent -= 1;  // magnitude = 1.xxx * 2^exponent
    int lowest = 1 - bias;
    int scale = mantissa_bits - (exponent < lowest ? lowest : exponent);
    double scaled = std::ldexp(magnitude, scale);  // exact: an integer part and what is lost
    double whole = std::floor(scaled), rest = scaled - whole;
    bool negative = sign != 0, up = false;
    switch (mode) {
        case Rounding::nearest: up = rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) == 1); break;
        case Rounding::zero: break;
        case Rounding::down: up = negative && rest > 0; break;
        case Rounding::up: up = !negative && rest > 0; break;
    }
    uint64_t units = uint64_t(whole) + (up ? 1 : 0);
    uint32_t result;
    if (exponent < lowest) {
        result = uint32_t(units);  // a carry makes it the smallest normal number by itself
    } else {
        result = uint32_t(exponent + bias) << mantissa_bits;
        result += uint32_t(units - (uint64_t(1) << mantissa_bits));
    }
    if (result >= infinity) {
        bool stays = finite || mode == Rounding::zero || (mode == Rounding::down && !negative) || (mode == Rounding::up && negative);
        result = stays ? infinity - 1 : infinity;
    }
    return sign | result;
}

inline double decode(uint32_t bits, int exponent_bits, int mantissa_bits) {
    uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    uint32_t exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
    double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1.0 : 1.0;
    int bias = (1 << (exponent_bits - 1)) - 1;
    if (exponent == (1u << exponent_bits) - 1) {
        return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(double(mantissa), 1 - bias - mantissa_bits);
    return sign * std::ldexp(1.0 + double(mantissa) / double(1u << mantissa_bits), int(exponent) - bias);
}

inline float to_float(Half h) {
    uint32_t sign = uint32_t(h.bits & 0x8000) << 16, exponent = h.bits >> 10 & 31, mantissa = h.bits & 0x3FF;
    if (exponent == 31) return bits_as<float>(sign | 0x7F800000 | mantissa << 13);
    if (exponent) return bits_as<float>(sign | (exponent + 112) << 23 | mantissa << 13);
    float value = float(mantissa) * 0x1p-24f;
    return sign ? -value : value;
}
inline float to_float(Bfloat b) { return bits_as<float>(uint32_t(b.bits) << 16); }
inline float to_float(float f) { return f; }
inline double to_float(double d) { return d; }

// Rounded to odd: what is rounded again later, to at most 22 bits, comes out as if it had been rounded once.
inline float odd_float(double value) {
    float nearest = float(value);
    if (std::isnan(nearest) || double(nearest) == value) return nearest;
    uint32_t bits = bits_as<uint32_t>(nearest);
    if (std::fabs(double(nearest)) > std::fabs(value)) --bits;
    return bits_as<float>(bits | 1);
}

inline uint16_t half_bits(float value) {  // to nearest even
    uint32_t bits = bits_as<uint32_t>(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return 0x7FFF;
    if (bits >= 0x477FF000) return uint16_t(sign | 0x7C00);  // 65520 and more
    if (bits < 0x38800000) {                                 // below 2^-14: 0.5 has units of 2^-24
        return uint16_t(sign | (bits_as<uint32_t>(bits_as<float>(bits) + 0.5f) - 0x3F000000));
    }
    return uint16_t(sign | (bits + 0xC8000FFF + (bits >> 13 & 1)) >> 13);
}

inline uint16_t bfloat_bits(float value) {  // to nearest even
    uint32_t bits = bits_as<uint32_t>(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

template <class T> T from_double(double value);
template <> inline Half from_double<Half>(double value) { return {half_bits(odd_float(value))}; }
template <> inline Bfloat from_double<Bfloat>(double value) { return {bfloat_bits(odd_float(value))}; }

template <class T> struct Limits16;
template <> struct Limits16<Half> { static constexpr uint16_t nan = 0x7FFF, exponent = 0x7C00; };
template <> struct Limits16<Bfloat> { static constexpr uint16_t nan = 0x7FFF, exponent = 0x7F80; };

inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

inline int host_mode(Rounding mode) {
    return mode == Rounding::zero ? FE_TOWARDZERO : mode == Rounding::down ? FE_DOWNWARD : mode == Rounding::up ? FE_UPWARD : FE_TONEAREST;
}

// The host's rounding mode for a few operations, whose operands are volatile so that none moves out.
struct RoundingScope {
    int before = std::fegetround();
    explicit RoundingScope(Rounding mode) { std::fesetround(host_mode(mode)); }
    ~RoundingScope() { std::fesetround(before); }
};

// a * b + c of 16-bit formats, rounded to odd in double, so that the next rounding is the only one that counts.
inline double fused_odd(double a, double b, double c) {
    double product = a * b;  // exact
    double sum = product + c;
    if (!std::isfinite(sum)) return sum;
    double t = sum - product;
    double error = (product - (sum - t)) + (c - t);
    uint64_t raw = bits_as<uint64_t>(sum);
    if (error != 0 && !(raw & 1)) raw += (error > 0) == (sum > 0) ? 1 : -1;
    return bits_as<double>(raw);
}

}  // namespace ptx
