// conversions.cpp: cvt: between integers, between floating-point formats, and from the ones to the others.
#include "numbers.h"

#include <algorithm>
#include <array>

#include "machine.h"

namespace ptx {

namespace {

template <class D, class S> D plain(S value) { return D(value); }

// Bounds of an integer type of conversions; as INTEGERS in forms.py.
struct Bounds {
    __int128 low, high;
};
Bounds bounds_of(uint32_t type) {
    int bits = 8 << type / 2;
    __int128 unit = 1;
    return type % 2 ? Bounds{-(unit << (bits - 1)), (unit << (bits - 1)) - 1} : Bounds{0, (unit << bits) - 1};
}

void put_integer(Warp& warp, uint32_t offset, int lane, uint32_t type, uint64_t value) {
    uint32_t bytes = 1u << type / 2;
    if (bytes == 8) warp.lanes<uint64_t>(offset)[lane] = value;
    else warp.lanes<uint32_t>(offset)[lane] = bytes == 4 ? uint32_t(value) : uint32_t(value & ((uint64_t(1) << 8 * bytes) - 1));
}

template <class S>
void saturating(Warp& warp, const Instruction& i, uint32_t mask) {  // from integer S to the integer type `detail`
    auto* a = warp.lanes<typename Lane<S>::Word>(i.operands[1]);
    Bounds bounds = bounds_of(i.detail);
    each_lane(mask, [&](int l) {
        __int128 value = Lane<S>::get(a[l]);
        put_integer(warp, i.operands[0], l, i.detail, uint64_t(std::clamp(value, bounds.low, bounds.high)));
    });
}

enum class ToInteger { nearest, zero, down, up };

template <ToInteger Mode> double integral(double value) {
    switch (Mode) {
        case ToInteger::nearest: return std::nearbyint(value);
        case ToInteger::zero: return std::trunc(value);
        case ToInteger::down: return std::floor(value);
        default: return std::ceil(value);
    }
}

template <class S, ToInteger Mode, bool Flush>
void to_integer(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* a = warp.lanes<typename Lane<S>::Word>(i.operands[1]);
    Bounds bounds = bounds_of(i.detail);
    double low = double(bounds.low), high = double(bounds.high);  // high may be rounded up to a power of two
    each_lane(mask, [&](int l) {
        double value = double(Lane<S>::get(a[l]));
        if (Flush) value = double(flushed(float(value)));
        value = integral<Mode>(value);
        __int128 whole = std::isnan(value) ? (sizeof(S) == 8 && i.detail >= 6 ? bounds.low : 0)
                         : value <= low    ? bounds.low
                         : value >= high   ? bounds.high
                                           : __int128(value);
        put_integer(warp, i.operands[0], l, i.detail, uint64_t(whole));
    });
}

template <class D, class S, Rounding Mode>
void from_integer(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<typename Lane<D>::Word>(i.operands[0]);
    auto* a = warp.lanes<typename Lane<S>::Word>(i.operands[1]);
    if constexpr (Mode == Rounding::nearest) {
        each_lane(mask, [=](int l) { d[l] = Lane<D>::put(D(Lane<S>::get(a[l]))); });
    } else {
        RoundingScope scope(Mode);
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            int l = __builtin_ctz(rest);
            volatile S source = Lane<S>::get(a[l]);
            volatile D value = D(source);
            d[l] = Lane<D>::put(D(value));
        }
    }
}

template <class T, class S> T half_from_integer(S value) { return from_double<T>(double(value)); }

template <ToInteger Mode, class T> T to_integral(T value) { return std::copysign(T(integral<Mode>(value)), value); }
template <class T> T half_to_integral_nearest(T value) { return from_double<T>(std::nearbyint(double(to_float(value)))); }

float widen_half(Half value) { return to_float(value); }
float widen_bfloat(Bfloat value) { return to_float(value); }
Half to_half(float value) { return {half_bits(value)}; }
Bfloat to_bfloat(float value) { return {bfloat_bits(value)}; }
Half double_to_half(double value) { return from_double<Half>(value); }
Bfloat double_to_bfloat(double value) { return from_double<Bfloat>(value); }
template <Rounding Mode> Half to_half_mode(float value) { return {uint16_t(encode(value, 5, 10, Mode))}; }
template <Rounding Mode> Bfloat to_bfloat_mode(float value) { return {uint16_t(encode(value, 8, 7, Mode))}; }
double to_double(float value) { return double(value); }
float to_single(double value) { return float(value); }
template <Rounding Mode>
void narrow(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<uint32_t>(i.operands[0]);
    auto* a = warp.lanes<uint64_t>(i.operands[1]);
    RoundingScope scope(Mode);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        volatile double source = bits_as<double>(a[l]);
        volatile float value = float(source);
        d[l] = bits_as<uint32_t>(float(value));
    }
}
float flush_single(float value) { return flushed(value); }
float positive_single(float value) { return std::isnan(value) ? bits_as<float>(uint32_t(0x7FFFFFFF)) : value > 0 ? value : 0.0f; }

uint32_t to_tf32_away(uint32_t bits) {  // to nearest, ties away from zero
    return (bits & 0x7F800000) == 0x7F800000 ? bits : (bits + 0x1000) & 0xFFFFE000;
}
uint32_t to_tf32_even(uint32_t bits) {
    return (bits & 0x7F800000) == 0x7F800000 ? bits : (bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000;
}
uint32_t to_tf32_zero(uint32_t bits) { return bits & 0xFFFFE000; }

uint32_t pack_halves(float high, float low) { return uint32_t(half_bits(high)) << 16 | half_bits(low); }
uint32_t pack_bfloats(float high, float low) { return uint32_t(bfloat_bits(high)) << 16 | bfloat_bits(low); }
uint32_t pack_halves_zero(float high, float low) {
    return encode(high, 5, 10, Rounding::zero) << 16 | encode(low, 5, 10, Rounding::zero);
}
uint32_t pack_bfloats_zero(float high, float low) {
    return encode(high, 8, 7, Rounding::zero) << 16 | encode(low, 8, 7, Rounding::zero);
}

// 8-bit formats: E4M3 has no infinity and one NaN, E5M2 is as IEEE 754 would have it.
double decode_e4m3(uint8_t bits) {
    if ((bits & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    double value = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    return bits & 0x80 ? -value : value;
}
uint8_t encode_e4m3(float value) {  // to nearest even, the largest value instead of an overflow
    if (std::isnan(value)) return 0x7F;
    uint8_t sign = std::signbit(value) ? 0x80 : 0;
    double magnitude = std::fabs(double(value));
    if (magnitude >= 448) return sign | 0x7E;
    int below = 0;
    while (decode_e4m3(uint8_t(below + 1)) <= magnitude) ++below;
    double low = decode_e4m3(uint8_t(below)), high = decode_e4m3(uint8_t(below + 1));
    double middle = (low + high) / 2;
    if (magnitude > middle || (magnitude == middle && (below & 1))) ++below;
    return uint8_t(sign | below);
}
uint8_t encode_e5m2(float value) { return uint8_t(encode(value, 5, 2, Rounding::nearest, true)); }
template <auto Encode> uint16_t pack_bytes(float high, float low) { return uint16_t(Encode(high) << 8 | Encode(low)); }
template <auto Encode> uint16_t pack_bytes_of_halves(uint32_t pair) {
    return pack_bytes<Encode>(to_float(Half{uint16_t(pair >> 16)}), to_float(Half{uint16_t(pair)}));
}
uint32_t unpack_e4m3(uint16_t pair) {
    return pack_halves(float(decode_e4m3(uint8_t(pair >> 8))), float(decode_e4m3(uint8_t(pair))));
}
uint32_t unpack_e5m2(uint16_t pair) { return uint32_t(pair & 0xFF00) << 16 | uint32_t(pair & 0xFF) << 8; }

}  // namespace

void add_conversions(std::vector<HandlerEntry>& table) {
#define WHOLE(s, S)                                                                                                    \
    {"cvt.b8." #s, &unary<uint8_t, S, plain<uint8_t, S>>}, {"cvt.b16." #s, &unary<uint16_t, S, plain<uint16_t, S>>},    \
    {"cvt.b32." #s, &unary<uint32_t, S, plain<uint32_t, S>>}, {"cvt.b64." #s, &unary<uint64_t, S, plain<uint64_t, S>>}, \
    {"cvt.sat." #s, &saturating<S>}
    table.insert(table.end(), {WHOLE(u8, uint8_t), WHOLE(s8, int8_t), WHOLE(u16, uint16_t), WHOLE(s16, int16_t),
                               WHOLE(u32, uint32_t), WHOLE(s32, int32_t), WHOLE(u64, uint64_t), WHOLE(s64, int64_t)});
#define TO(mode, Mode)                                                                                                 \
    {"cvt." mode ".int.f32", &to_integer<float, ToInteger::Mode, false>},                                               \
    {"cvt." mode ".ftz.int.f32", &to_integer<float, ToInteger::Mode, true>},                                            \
    {"cvt." mode ".int.f64", &to_integer<double, ToInteger::Mode, false>},                                              \
    {"cvt." mode ".f32.f32", &unary<float, float, to_integral<ToInteger::Mode, float>>},                                \
    {"cvt." mode ".f64.f64", &unary<double, double, to_integral<ToInteger::Mode, double>>}
    table.insert(table.end(), {TO("rni", nearest), TO("rzi", zero), TO("rmi", down), TO("rpi", up)});
#define FROM(mode, Mode, d, D)                                                                                         \
    {"cvt." mode "." #d ".u32", &from_integer<D, uint32_t, Rounding::Mode>},                                            \
    {"cvt." mode "." #d ".s32", &from_integer<D, int32_t, Rounding::Mode>},                                             \
    {"cvt." mode "." #d ".u64", &from_integer<D, uint64_t, Rounding::Mode>},                                            \
    {"cvt." mode "." #d ".s64", &from_integer<D, int64_t, Rounding::Mode>}
    table.insert(table.end(), {FROM("rn", nearest, f32, float), FROM("rn", nearest, f64, double), FROM("rz", zero, f32, float),
                               FROM("rz", zero, f64, double), FROM("rm", down, f32, float), FROM("rm", down, f64, double),
                               FROM("rp", up, f32, float), FROM("rp", up, f64, double)});
#define HALF_FROM(s, S)                                                                                                \
    {"cvt.rn.f16." #s, &unary<Half, S, half_from_integer<Half, S>>},                                                    \
    {"cvt.rn.bf16." #s, &unary<Bfloat, S, half_from_integer<Bfloat, S>>}
    table.insert(table.end(), {HALF_FROM(u32, uint32_t), HALF_FROM(s32, int32_t), HALF_FROM(u64, uint64_t), HALF_FROM(s64, int64_t)});
    table.insert(table.end(), {
        {"cvt.rni.f16.f16", &unary<Half, Half, half_to_integral_nearest<Half>>},
        {"cvt.f32.f16", &unary<float, Half, widen_half>}, {"cvt.f32.bf16", &unary<float, Bfloat, widen_bfloat>},
        {"cvt.rn.f16.f32", &unary<Half, float, to_half>}, {"cvt.rn.bf16.f32", &unary<Bfloat, float, to_bfloat>},
        {"cvt.rz.f16.f32", &unary<Half, float, to_half_mode<Rounding::zero>>},
        {"cvt.rm.f16.f32", &unary<Half, float, to_half_mode<Rounding::down>>},
        {"cvt.rp.f16.f32", &unary<Half, float, to_half_mode<Rounding::up>>},
        {"cvt.rz.bf16.f32", &unary<Bfloat, float, to_bfloat_mode<Rounding::zero>>},
        {"cvt.rn.f16.f64", &unary<Half, double, double_to_half>}, {"cvt.rn.bf16.f64", &unary<Bfloat, double, double_to_bfloat>},
        {"cvt.f64.f32", &unary<double, float, to_double>}, {"cvt.rn.f32.f64", &unary<float, double, to_single>},
        {"cvt.rz.f32.f64", &narrow<Rounding::zero>}, {"cvt.rm.f32.f64", &narrow<Rounding::down>},
        {"cvt.rp.f32.f64", &narrow<Rounding::up>}, {"flush.f32", &unary<float, float, flush_single>},
        {"relu.f32", &unary<float, float, positive_single>},
        {"cvt.rna.tf32.f32", &unary<uint32_t, uint32_t, to_tf32_away>}, {"cvt.rn.tf32.f32", &unary<uint32_t, uint32_t, to_tf32_even>},
        {"cvt.rz.tf32.f32", &unary<uint32_t, uint32_t, to_tf32_zero>},
        {"cvt.rn.f16x2.f32", &binary<uint32_t, float, float, pack_halves>},
        {"cvt.rz.f16x2.f32", &binary<uint32_t, float, float, pack_halves_zero>},
        {"cvt.rn.bf16x2.f32", &binary<uint32_t, float, float, pack_bfloats>},
        {"cvt.rz.bf16x2.f32", &binary<uint32_t, float, float, pack_bfloats_zero>},
        {"cvt.rn.e4m3x2.f32", &binary<uint16_t, float, float, pack_bytes<encode_e4m3>>},
        {"cvt.rn.e5m2x2.f32", &binary<uint16_t, float, float, pack_bytes<encode_e5m2>>},
        {"cvt.rn.e4m3x2.f16x2", &unary<uint16_t, uint32_t, pack_bytes_of_halves<encode_e4m3>>},
        {"cvt.rn.e5m2x2.f16x2", &unary<uint16_t, uint32_t, pack_bytes_of_halves<encode_e5m2>>},
        {"cvt.rn.f16x2.e4m3x2", &unary<uint32_t, uint16_t, unpack_e4m3>},
        {"cvt.rn.f16x2.e5m2x2", &unary<uint32_t, uint16_t, unpack_e5m2>},
    });
}

}  // namespace ptx
