// integer.cpp: arithmetic, logic and comparison of integers, and what moves bits between registers.
#include <algorithm>
#include <type_traits>

#include "machine.h"

namespace ptx {

namespace {

template <class T> using Unsigned = std::make_unsigned_t<T>;
template <class T> struct Wider;
template <> struct Wider<uint16_t> { using type = uint32_t; };
template <> struct Wider<int16_t> { using type = int32_t; };
template <> struct Wider<uint32_t> { using type = uint64_t; };
template <> struct Wider<int32_t> { using type = int64_t; };
template <> struct Wider<uint64_t> { using type = unsigned __int128; };
template <> struct Wider<int64_t> { using type = __int128; };
template <class T> using Wide = typename Wider<T>::type;
template <class T> constexpr int kBits = sizeof(T) * 8;

// Unsigned arithmetic in at least 32 bits: 16-bit operands would be promoted to int, which may overflow.
template <class T> using Safe = std::conditional_t<(sizeof(T) < 4), uint32_t, Unsigned<T>>;

template <class T> T add(T a, T b) { return T(Safe<T>(a) + Safe<T>(b)); }
template <class T> T subtract(T a, T b) { return T(Safe<T>(a) - Safe<T>(b)); }
template <class T> T multiply_low(T a, T b) { return T(Safe<T>(a) * Safe<T>(b)); }
template <class T> T multiply_high(T a, T b) { return T((Wide<T>(a) * Wide<T>(b)) >> kBits<T>); }
template <class T> Wide<T> multiply_wide(T a, T b) { return Wide<T>(a) * Wide<T>(b); }
template <class T> T multiply_add_low(T a, T b, T c) { return T(Safe<T>(a) * Safe<T>(b) + Safe<T>(c)); }
template <class T> T multiply_add_high(T a, T b, T c) { return add<T>(multiply_high<T>(a, b), c); }
template <class T> Wide<T> multiply_add_wide(T a, T b, Wide<T> c) {
    return Wide<T>(Unsigned<Wide<T>>(Wide<T>(a) * Wide<T>(b)) + Unsigned<Wide<T>>(c));
}
template <class T> T divide(T a, T b) {
    if (b == 0) return T(~T(0));
    if (std::is_signed_v<T> && b == T(-1)) return T(Safe<T>(0) - Safe<T>(a));
    return T(a / b);
}
template <class T> T remainder(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == T(-1)) return 0;
    return T(a % b);
}
template <class T> T smaller(T a, T b) { return a < b ? a : b; }
template <class T> T larger(T a, T b) { return a < b ? b : a; }
template <class T> T absolute(T a) { return a < 0 ? T(Safe<T>(0) - Safe<T>(a)) : a; }
template <class T> T negative(T a) { return T(Safe<T>(0) - Safe<T>(a)); }
template <class T> T conjunction(T a, T b) { return T(a & b); }
template <class T> T disjunction(T a, T b) { return T(a | b); }
template <class T> T exclusive(T a, T b) { return T(a ^ b); }
template <class T> T complement(T a) { return T(~a); }
template <class T> T logical_not(T a) { return T(a == 0); }
template <class T> T shift_left(T a, uint32_t n) { return n >= kBits<T> ? T(0) : T(Safe<T>(a) << n); }
template <class T> T shift_right(T a, uint32_t n) {
    if (n >= kBits<T>) return std::is_signed_v<T> && a < 0 ? T(-1) : T(0);
    return T(a >> n);
}
int32_t add_saturated(int32_t a, int32_t b) { return int32_t(std::clamp<int64_t>(int64_t(a) + b, INT32_MIN, INT32_MAX)); }
int32_t subtract_saturated(int32_t a, int32_t b) { return int32_t(std::clamp<int64_t>(int64_t(a) - b, INT32_MIN, INT32_MAX)); }
template <class T> Unsigned<T> absolute_difference(T a, T b, Unsigned<T> c) {
    return Unsigned<T>((a < b ? Unsigned<T>(b) - Unsigned<T>(a) : Unsigned<T>(a) - Unsigned<T>(b)) + c);
}
template <class T> T multiply_24(T a, T b) {
    constexpr bool is_signed = std::is_signed_v<T>;
    auto low = [](T x) { return is_signed ? int64_t(int32_t(uint32_t(x) << 8) >> 8) : int64_t(uint32_t(x) & 0xFFFFFF); };
    return T(low(a) * low(b));
}
template <class T> T multiply_add_24(T a, T b, T c) { return add<T>(multiply_24<T>(a, b), c); }

uint32_t ones32(uint32_t a) { return uint32_t(__builtin_popcount(a)); }
uint32_t ones64(uint64_t a) { return uint32_t(__builtin_popcountll(a)); }
uint32_t leading32(uint32_t a) { return a ? uint32_t(__builtin_clz(a)) : 32; }
uint32_t leading64(uint64_t a) { return a ? uint32_t(__builtin_clzll(a)) : 64; }
template <class T> T reversed(T a) {
    T result = 0;
    for (int bit = 0; bit < kBits<T>; ++bit) result = T(result << 1 | (a >> bit & 1));
    return result;
}
template <class T> uint32_t find_bit(T a) {
    Unsigned<T> bits = Unsigned<T>(std::is_signed_v<T> && a < 0 ? ~a : a);
    return bits ? uint32_t(63 - __builtin_clzll(uint64_t(bits))) : UINT32_MAX;
}
template <class T> uint32_t find_bit_shift(T a) {
    uint32_t found = find_bit<T>(a);
    return found == UINT32_MAX ? found : kBits<T> - 1 - found;
}
template <class T> T extract_field(T a, uint32_t position, uint32_t length) {
    position &= 0xFF, length &= 0xFF;
    constexpr uint32_t bits = kBits<T>;
    Unsigned<T> value = Unsigned<T>(a), sign = 0;
    if (std::is_signed_v<T> && length) sign = value >> std::min(position + length - 1, bits - 1) & 1;
    Unsigned<T> low = position < bits ? Unsigned<T>(value >> position) : 0;
    if (length == 0) return 0;
    if (length >= bits) {
        uint32_t filled = position < bits ? bits - position : 0;
        return T(sign && filled < bits ? low | Unsigned<T>(~Unsigned<T>(0) << filled) : low);
    }
    Unsigned<T> mask = (Unsigned<T>(1) << length) - 1;
    Unsigned<T> field = low & mask;
    if (std::is_signed_v<T> && sign) {
        uint32_t filled = position < bits ? std::min(length, bits - position) : 0;
        field |= filled < bits ? Unsigned<T>(~Unsigned<T>(0) << filled) : 0;
    }
    return T(field);
}
uint32_t funnel_left_clamp(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t n = std::min(c, 32u);
    return uint32_t(((uint64_t(b) << 32 | a) << n) >> 32);
}
uint32_t funnel_left_wrap(uint32_t a, uint32_t b, uint32_t c) { return funnel_left_clamp(a, b, c & 31); }
uint32_t funnel_right_clamp(uint32_t a, uint32_t b, uint32_t c) {
    return uint32_t((uint64_t(b) << 32 | a) >> std::min(c, 32u));
}
uint32_t funnel_right_wrap(uint32_t a, uint32_t b, uint32_t c) { return funnel_right_clamp(a, b, c & 31); }

uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = uint64_t(b) << 32 | a;
    uint32_t result = 0;
    for (int place = 0; place < 4; ++place) {
        uint32_t choice = selector >> 4 * place & 15;
        uint32_t byte = uint32_t(bytes >> 8 * (choice & 7)) & 0xFF;
        if (choice & 8) byte = byte & 0x80 ? 0xFF : 0;
        result |= byte << 8 * place;
    }
    return result;
}
template <int Mode> uint32_t permute_mode(uint32_t a, uint32_t b, uint32_t c) {
    static const uint32_t selectors[6][4] = {
        {0x3210, 0x4321, 0x5432, 0x6543},  // f4e
        {0x5670, 0x6701, 0x7012, 0x0123},  // b4e
        {0x0000, 0x1111, 0x2222, 0x3333},  // rc8
        {0x3210, 0x3211, 0x3222, 0x3333},  // ecl
        {0x0000, 0x1110, 0x2210, 0x3210},  // ecr
        {0x1010, 0x3232, 0x1010, 0x3232},  // rc16
    };
    return permute(a, b, selectors[Mode][c & 3]);
}

template <class T>
void insert_field(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<T>(i.operands[0]);
    auto *a = warp.lanes<T>(i.operands[1]), *b = warp.lanes<T>(i.operands[2]);
    auto *p = warp.lanes<uint32_t>(i.operands[3]), *n = warp.lanes<uint32_t>(i.operands[4]);
    each_lane(mask, [=](int l) {
        uint32_t position = p[l] & 0xFF, length = n[l] & 0xFF;
        T bits = length >= kBits<T> ? T(~T(0)) : T((T(1) << length) - 1);
        T field = position < kBits<T> ? T(bits << position) : T(0);
        d[l] = T((b[l] & ~field) | (position < kBits<T> ? T(a[l] << position) & field : 0));
    });
}

void logic3(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<uint32_t>(i.operands[0]);
    auto *a = warp.lanes<uint32_t>(i.operands[1]), *b = warp.lanes<uint32_t>(i.operands[2]);
    auto* c = warp.lanes<uint32_t>(i.operands[3]);
    uint32_t table = uint32_t(i.immediate);
    each_lane(mask, [=](int l) {
        uint32_t r = 0;
        for (int k = 0; k < 8; ++k) {
            if (table >> k & 1) r |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
        }
        d[l] = r;
    });
}

template <bool SignedA, bool SignedB>
void dot4(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<uint32_t>(i.operands[0]);
    auto *a = warp.lanes<uint32_t>(i.operands[1]), *b = warp.lanes<uint32_t>(i.operands[2]);
    auto* c = warp.lanes<uint32_t>(i.operands[3]);
    each_lane(mask, [=](int l) {
        int64_t sum = 0;
        for (int k = 0; k < 4; ++k) {
            uint8_t x = uint8_t(a[l] >> 8 * k), y = uint8_t(b[l] >> 8 * k);
            sum += int64_t(SignedA ? int8_t(x) : x) * int64_t(SignedB ? int8_t(y) : y);
        }
        d[l] = uint32_t(uint64_t(sum) + c[l]);
    });
}

// Sums and differences that pass a carry on. The operation: 1 takes the carry, 2 leaves one, 4 subtracts.
template <class T, int Operation>
void with_carry(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<T>(i.operands[0]);
    auto *a = warp.lanes<T>(i.operands[1]), *b = warp.lanes<T>(i.operands[2]);
    uint32_t carry = warp.carry, left = carry;
    each_lane(mask, [&](int l) {
        T x = a[l], y = Operation & 4 ? T(~b[l]) : b[l];
        T in = Operation & 1 ? T(carry >> l & 1) : T(Operation & 4 ? 1 : 0);
        unsigned __int128 sum = (unsigned __int128)x + y + in;
        d[l] = T(sum);
        left = (left & ~(1u << l)) | uint32_t(sum >> kBits<T> & 1) << l;
    });
    if (Operation & 2) warp.carry = left;
}

// Comparison in words: 0 eq, 1 ne, 2 lt, 3 le, 4 gt, 5 ge
template <int Comparison, class T> bool compare(T a, T b) {
    switch (Comparison) {
        case 0: return a == b;
        case 1: return a != b;
        case 2: return a < b;
        case 3: return a <= b;
        case 4: return a > b;
        default: return a >= b;
    }
}

template <class T, int Comparison>
void set_predicate(Warp& warp, const Instruction& i, uint32_t mask) {
    using Word = typename Lane<T>::Word;
    auto *a = warp.lanes<Word>(i.operands[1]), *b = warp.lanes<Word>(i.operands[2]);
    uint32_t found = 0;
    for (int l = 0; l < kLanes; ++l) found |= uint32_t(compare<Comparison, T>(Lane<T>::get(a[l]), Lane<T>::get(b[l]))) << l;
    uint32_t& p = warp.predicate(i.operands[0]);
    p = (p & ~mask) | (found & mask);
}

template <int Operation>  // 0 and, 1 or, 2 xor, 3 not, 4 move, 5 and with the complement
void predicate_logic(Warp& warp, const Instruction& i, uint32_t mask) {
    uint32_t a = warp.predicate(i.operands[1]);
    uint32_t b = Operation < 3 || Operation == 5 ? warp.predicate(i.operands[2]) : 0;
    uint32_t r = Operation == 0 ? a & b : Operation == 1 ? a | b : Operation == 2 ? a ^ b : Operation == 3 ? ~a : Operation == 5 ? a & ~b : a;
    uint32_t& d = warp.predicate(i.operands[0]);
    d = (d & ~mask) | (r & mask);
}

template <class Word>
void select(Warp& warp, const Instruction& i, uint32_t mask) {
    auto *d = warp.lanes<Word>(i.operands[0]), *a = warp.lanes<Word>(i.operands[1]), *b = warp.lanes<Word>(i.operands[2]);
    uint32_t p = warp.predicate(i.operands[3]);
    each_lane(mask, [=](int l) { d[l] = p >> l & 1 ? a[l] : b[l]; });
}

void select_predicate(Warp& warp, const Instruction& i, uint32_t mask) {
    uint32_t a = warp.predicate(i.operands[1]), b = warp.predicate(i.operands[2]), p = warp.predicate(i.operands[3]);
    uint32_t& d = warp.predicate(i.operands[0]);
    d = (d & ~mask) | (((a & p) | (b & ~p)) & mask);
}

template <class Word>
void move(Warp& warp, const Instruction& i, uint32_t mask) {
    auto *d = warp.lanes<Word>(i.operands[0]), *a = warp.lanes<Word>(i.operands[1]);
    each_lane(mask, [=](int l) { d[l] = a[l]; });
}

template <class D, class A>
void resize(Warp& warp, const Instruction& i, uint32_t mask) {  // of a register: zero- or sign-extended, or its low part
    auto* d = warp.lanes<typename Lane<D>::Word>(i.operands[0]);
    auto* a = warp.lanes<typename Lane<A>::Word>(i.operands[1]);
    each_lane(mask, [=](int l) { d[l] = Lane<D>::put(D(Lane<A>::get(a[l]))); });
}

// mov between a register and the vector of its parts; `detail` is the bytes of a part.
void pack(Warp& warp, const Instruction& i, uint32_t mask) {
    uint32_t bytes = i.detail, parts = i.count - 1, total = bytes * parts;
    each_lane(mask, [&](int l) {
        uint64_t value = 0;
        for (uint32_t k = 0; k < parts; ++k) {
            uint64_t part = bytes == 8 ? warp.lanes<uint64_t>(i.operands[1 + k])[l] : warp.lanes<uint32_t>(i.operands[1 + k])[l];
            if (bytes < 4) part &= (uint64_t(1) << 8 * bytes) - 1;
            value |= part << 8 * bytes * k;
        }
        if (total == 8) warp.lanes<uint64_t>(i.operands[0])[l] = value;
        else warp.lanes<uint32_t>(i.operands[0])[l] = uint32_t(value);
    });
}

void unpack(Warp& warp, const Instruction& i, uint32_t mask) {
    uint32_t bytes = i.detail, parts = i.count - 1, total = bytes * parts;
    each_lane(mask, [&](int l) {
        uint64_t value = total == 8 ? warp.lanes<uint64_t>(i.operands[0])[l] : warp.lanes<uint32_t>(i.operands[0])[l];
        for (uint32_t k = 0; k < parts; ++k) {
            if (i.operands[1 + k] == kNone) continue;  // the sink _
            uint64_t part = value >> 8 * bytes * k;
            if (bytes < 4) part &= (uint64_t(1) << 8 * bytes) - 1;
            warp.lanes<uint32_t>(i.operands[1 + k])[l] = uint32_t(part);
        }
    });
}

void add_immediate(Warp& warp, const Instruction& i, uint32_t mask) {  // cvta: an address in another window
    auto *d = warp.lanes<uint64_t>(i.operands[0]), *a = warp.lanes<uint64_t>(i.operands[1]);
    uint64_t n = i.immediate;
    each_lane(mask, [=](int l) { d[l] = a[l] + n; });
}

void in_window(Warp& warp, const Instruction& i, uint32_t mask) {  // isspacep
    auto* a = warp.lanes<uint64_t>(i.operands[1]);
    uint32_t found = 0;
    for (int l = 0; l < kLanes; ++l) found |= uint32_t(a[l] / kWindow == i.immediate / kWindow) << l;
    uint32_t& p = warp.predicate(i.operands[0]);
    p = (p & ~mask) | (found & mask);
}

template <class T> void arithmetic(std::vector<HandlerEntry>& table, const char* (&names)[12]) {
    table.push_back({names[0], &binary<T, T, T, divide<T>>});
    table.push_back({names[1], &binary<T, T, T, remainder<T>>});
    table.push_back({names[2], &binary<T, T, T, smaller<T>>});
    table.push_back({names[3], &binary<T, T, T, larger<T>>});
    table.push_back({names[4], &binary<T, T, uint32_t, shift_right<T>>});
    table.push_back({names[5], &binary<T, T, T, multiply_high<T>>});
    table.push_back({names[6], &set_predicate<T, 0>});
    table.push_back({names[7], &set_predicate<T, 1>});
    table.push_back({names[8], &set_predicate<T, 2>});
    table.push_back({names[9], &set_predicate<T, 3>});
    table.push_back({names[10], &set_predicate<T, 4>});
    table.push_back({names[11], &set_predicate<T, 5>});
}

#define NAMES(t)                                                                                                       \
    static const char* names_##t[12] = {"div." #t,     "rem." #t,     "min." #t,     "max." #t,                        \
                                        "shr." #t,     "mul.hi." #t,  "setp.eq." #t, "setp.ne." #t,                    \
                                        "setp.lt." #t, "setp.le." #t, "setp.gt." #t, "setp.ge." #t};
NAMES(u16) NAMES(s16) NAMES(u32) NAMES(s32) NAMES(u64) NAMES(s64)
#undef NAMES

}  // namespace

void add_integer(std::vector<HandlerEntry>& table) {
    arithmetic<uint16_t>(table, names_u16);
    arithmetic<int16_t>(table, names_s16);
    arithmetic<uint32_t>(table, names_u32);
    arithmetic<int32_t>(table, names_s32);
    arithmetic<uint64_t>(table, names_u64);
    arithmetic<int64_t>(table, names_s64);
#define PLAIN(b, T)                                                                                                    \
    {"add." #b, &binary<T, T, T, add<T>>}, {"sub." #b, &binary<T, T, T, subtract<T>>},                                  \
    {"mul.lo." #b, &binary<T, T, T, multiply_low<T>>}, {"mad.lo." #b, &ternary<T, T, T, T, multiply_add_low<T>>},       \
    {"and." #b, &binary<T, T, T, conjunction<T>>}, {"or." #b, &binary<T, T, T, disjunction<T>>},                        \
    {"xor." #b, &binary<T, T, T, exclusive<T>>}, {"not." #b, &unary<T, T, complement<T>>},                              \
    {"cnot." #b, &unary<T, T, logical_not<T>>}, {"shl." #b, &binary<T, T, uint32_t, shift_left<T>>},                    \
    {"neg." #b, &unary<T, T, negative<T>>}
    table.insert(table.end(), {PLAIN(b16, uint16_t), PLAIN(b32, uint32_t), PLAIN(b64, uint64_t)});
#undef PLAIN
#define WIDE(t, T)                                                                                                     \
    {"mul.wide." #t, &binary<Wide<T>, T, T, multiply_wide<T>>},                                                         \
    {"mad.wide." #t, &ternary<Wide<T>, T, T, Wide<T>, multiply_add_wide<T>>}
    table.insert(table.end(), {WIDE(u16, uint16_t), WIDE(s16, int16_t), WIDE(u32, uint32_t), WIDE(s32, int32_t)});
#undef WIDE
    table.insert(table.end(), {
        {"mad.hi.u32", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, multiply_add_high<uint32_t>>},
        {"mad.hi.s32", &ternary<int32_t, int32_t, int32_t, int32_t, multiply_add_high<int32_t>>},
        {"mad.hi.u64", &ternary<uint64_t, uint64_t, uint64_t, uint64_t, multiply_add_high<uint64_t>>},
        {"mad.hi.s64", &ternary<int64_t, int64_t, int64_t, int64_t, multiply_add_high<int64_t>>},
        {"mul24.lo.u32", &binary<uint32_t, uint32_t, uint32_t, multiply_24<uint32_t>>},
        {"mul24.lo.s32", &binary<int32_t, int32_t, int32_t, multiply_24<int32_t>>},
        {"mad24.lo.u32", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, multiply_add_24<uint32_t>>},
        {"mad24.lo.s32", &ternary<int32_t, int32_t, int32_t, int32_t, multiply_add_24<int32_t>>},
        {"add.sat.s32", &binary<int32_t, int32_t, int32_t, add_saturated>},
        {"sub.sat.s32", &binary<int32_t, int32_t, int32_t, subtract_saturated>},
        {"abs.s16", &unary<int16_t, int16_t, absolute<int16_t>>}, {"abs.s32", &unary<int32_t, int32_t, absolute<int32_t>>},
        {"abs.s64", &unary<int64_t, int64_t, absolute<int64_t>>},
        {"sad.u32", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, absolute_difference<uint32_t>>},
        {"sad.s32", &ternary<uint32_t, int32_t, int32_t, uint32_t, absolute_difference<int32_t>>},
        {"popc.b32", &unary<uint32_t, uint32_t, ones32>}, {"popc.b64", &unary<uint32_t, uint64_t, ones64>},
        {"clz.b32", &unary<uint32_t, uint32_t, leading32>}, {"clz.b64", &unary<uint32_t, uint64_t, leading64>},
        {"brev.b32", &unary<uint32_t, uint32_t, reversed<uint32_t>>}, {"brev.b64", &unary<uint64_t, uint64_t, reversed<uint64_t>>},
        {"bfind.u32", &unary<uint32_t, uint32_t, find_bit<uint32_t>>}, {"bfind.s32", &unary<uint32_t, int32_t, find_bit<int32_t>>},
        {"bfind.u64", &unary<uint32_t, uint64_t, find_bit<uint64_t>>}, {"bfind.s64", &unary<uint32_t, int64_t, find_bit<int64_t>>},
        {"bfind.shiftamt.u32", &unary<uint32_t, uint32_t, find_bit_shift<uint32_t>>},
        {"bfind.shiftamt.s32", &unary<uint32_t, int32_t, find_bit_shift<int32_t>>},
        {"bfe.u32", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, extract_field<uint32_t>>},
        {"bfe.s32", &ternary<int32_t, int32_t, uint32_t, uint32_t, extract_field<int32_t>>},
        {"bfe.u64", &ternary<uint64_t, uint64_t, uint32_t, uint32_t, extract_field<uint64_t>>},
        {"bfe.s64", &ternary<int64_t, int64_t, uint32_t, uint32_t, extract_field<int64_t>>},
        {"bfi.b32", &insert_field<uint32_t>}, {"bfi.b64", &insert_field<uint64_t>}, {"lop3.b32", &logic3},
        {"shf.l.clamp.b32", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, funnel_left_clamp>},
        {"shf.l.wrap.b32", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, funnel_left_wrap>},
        {"shf.r.clamp.b32", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, funnel_right_clamp>},
        {"shf.r.wrap.b32", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, funnel_right_wrap>},
        {"prmt.b32", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, permute>},
        {"prmt.b32.f4e", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, permute_mode<0>>},
        {"prmt.b32.b4e", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, permute_mode<1>>},
        {"prmt.b32.rc8", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, permute_mode<2>>},
        {"prmt.b32.ecl", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, permute_mode<3>>},
        {"prmt.b32.ecr", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, permute_mode<4>>},
        {"prmt.b32.rc16", &ternary<uint32_t, uint32_t, uint32_t, uint32_t, permute_mode<5>>},
        {"dp4a.u32.u32", &dot4<false, false>}, {"dp4a.u32.s32", &dot4<false, true>},
        {"dp4a.s32.u32", &dot4<true, false>}, {"dp4a.s32.s32", &dot4<true, true>},
        {"add.cc.b32", &with_carry<uint32_t, 2>}, {"addc.b32", &with_carry<uint32_t, 1>}, {"addc.cc.b32", &with_carry<uint32_t, 3>},
        {"sub.cc.b32", &with_carry<uint32_t, 6>}, {"subc.b32", &with_carry<uint32_t, 5>}, {"subc.cc.b32", &with_carry<uint32_t, 7>},
        {"add.cc.b64", &with_carry<uint64_t, 2>}, {"addc.b64", &with_carry<uint64_t, 1>}, {"addc.cc.b64", &with_carry<uint64_t, 3>},
        {"sub.cc.b64", &with_carry<uint64_t, 6>}, {"subc.b64", &with_carry<uint64_t, 5>}, {"subc.cc.b64", &with_carry<uint64_t, 7>},
        {"and.pred", &predicate_logic<0>}, {"or.pred", &predicate_logic<1>}, {"xor.pred", &predicate_logic<2>},
        {"not.pred", &predicate_logic<3>}, {"mov.pred", &predicate_logic<4>}, {"andnot.pred", &predicate_logic<5>},
        {"selp.b32", &select<uint32_t>}, {"selp.b64", &select<uint64_t>}, {"selp.pred", &select_predicate},
        {"mov.b32", &move<uint32_t>}, {"mov.b64", &move<uint64_t>}, {"mov.pack", &pack}, {"mov.unpack", &unpack},
        {"low.b32", &resize<uint32_t, uint64_t>}, {"wide.u32", &resize<uint64_t, uint32_t>},
        {"wide.s32", &resize<int64_t, int32_t>}, {"low.u16", &resize<uint32_t, uint16_t>},
        {"low.s16", &resize<int32_t, int16_t>}, {"low.u8", &resize<uint32_t, uint8_t>}, {"low.s8", &resize<int32_t, int8_t>},
        {"address.add", &add_immediate}, {"isspacep", &in_window},
    });
}

}  // namespace ptx
