// collective_sums.cpp: the parts of collectives that reduce: elements of all ranks in, one element out, in rank order.
//
// Compiled with SK_ELEMENT, the element type, and one of SK_SUM, SK_AVG, SK_MAX, SK_MIN, SK_PRODUCT. Every element is
// reduced in the order of the ranks, floats of 16 bits in float32, so that all ranks and all block counts give the same
// bits. NaN in one rank is NaN in the result, also of max and min.
#include "collective_slots.h"
#include "numbers.h"

namespace {

// A byte, 0 or 1: sum and max are `or`, product and min are `and`.
struct Bool {
    uint8_t byte;
};

using Element = SK_ELEMENT;

template <class T>
struct Computed {
    using Number = T;  // is compared
    using Total = T;   // is added and multiplied: integers wrap around, as unsigned ones may in C++
};
template <>
struct Computed<int32_t> {
    using Number = int32_t;
    using Total = uint32_t;
};
template <>
struct Computed<int64_t> {
    using Number = int64_t;
    using Total = uint64_t;
};
template <>
struct Computed<Float16> : Computed<float> {};
template <>
struct Computed<Bfloat16> : Computed<float> {};
template <>
struct Computed<Bool> {
    using Number = uint8_t;
    using Total = bool;
};

using Number = Computed<Element>::Number;
using Total = Computed<Element>::Total;

SK_INLINE uint8_t number(Bool value) { return value.byte != 0; }
SK_INLINE void put(uint8_t value, Bool& to) { to.byte = value; }

template <class T>
SK_INLINE T added(T x, T y) { return T(x + y); }
template <class T>
SK_INLINE T multiplied(T x, T y) { return T(x * y); }
SK_INLINE bool added(bool x, bool y) { return x | y; }
SK_INLINE bool multiplied(bool x, bool y) { return x & y; }

// Elements of two ranks, the lower rank first.
SK_INLINE Number joined(Number x, Number y) {
#if defined(SK_MAX)
    return (x > y || is_nan(x)) ? x : y;
#elif defined(SK_MIN)
    return (x < y || is_nan(x)) ? x : y;
#elif defined(SK_PRODUCT)
    return Number(multiplied(Total(x), Total(y)));
#else
    return Number(added(Total(x), Total(y)));
#endif
}

SK_INLINE Number finished(Number total, int64_t ranks) {
#ifdef SK_AVG
    return Number(total / Number(ranks));
#else
    (void)ranks;
    return total;
#endif
}

constexpr int64_t kTile = 2048 / int64_t(sizeof(Number));  // elements: totals stay in the L1 cache

// `to` may be one of the two.
SK_NOINLINE void reduce_two(const Element* x, const Element* y, int64_t count, int64_t ranks, Element* to) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i)
        put(finished(joined(number(x[i]), number(y[i])), ranks), to[i]);
}

// Elements of all ranks; of this rank they are in x, of the others in their slots.
struct Contributions {
    Slots slots;
    const Element* x;
    int64_t rank, ranks;

    SK_INLINE const Element* of(int64_t other, int64_t first) const {
        return (other == rank ? x : reinterpret_cast<const Element*>(slots.of(other))) + first;
    }
};

template <class T>
SK_INLINE void read_numbers(const T* from, int64_t count, Number* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = number(from[i]);
}
template <class T>
SK_INLINE void write_numbers(const Number* from, int64_t count, T* to) {
    for (int64_t i = 0; i < count; ++i) put(from[i], to[i]);
}

// The compiler does not vectorise the conversions of float16; where the machine has instructions for them, these serve.
#if defined(__F16C__) && !defined(__AVX512F__) && SK_HAS(__builtin_ia32_vcvtps2ph256)
#define SK_FLOAT16_INSTRUCTIONS 1
#define SK_NARROWED(wide) __builtin_ia32_vcvtps2ph256(wide, 0)
#elif defined(__AVX512F__) && !defined(__clang__) && SK_HAS(__builtin_ia32_vcvtps2ph512_mask)
#define SK_FLOAT16_INSTRUCTIONS 1
#define SK_NARROWED(wide) __builtin_ia32_vcvtps2ph512_mask(wide, 0, Halves{}, uint16_t(-1))
#else
#define SK_FLOAT16_INSTRUCTIONS 0
#endif
#if SK_FLOAT16_INSTRUCTIONS
SK_INLINE void read_numbers(const Float16* from, int64_t count, float* to) {
    int64_t done = 0;
    for (; done + kLanes <= count; done += kLanes) store(to + done, part_of(load_span(from + done), 0));
    for (; done < count; ++done) to[done] = to_float(from[done]);
}
SK_INLINE void write_numbers(const float* from, int64_t count, Float16* to) {
    int64_t done = 0;
    for (; done + kLanes <= count; done += kLanes) {
        const Vector value = load(from + done);
        const Words sign = Words(value) & 0x80000000u, nan = Words(value != value);
        const Words known = (Words(value) & ~nan) | (nan & (sign | 0x7fc00000u));  // every NaN becomes the same, as below
        *reinterpret_cast<AnyHalves*>(to + done) = Halves(SK_NARROWED(Vector(known)));
    }
    for (; done < count; ++done) from_float(from[done], to[done]);
}
#endif

SK_NOINLINE void reduce_all(const Contributions& given, int64_t first, int64_t count, Element* to) {
    Number totals[kTile], next[kTile];
    read_numbers(given.of(0, first), count, totals);
    for (int64_t other = 1; other < given.ranks; ++other) {
        read_numbers(given.of(other, first), count, next);
        for (int64_t i = 0; i < count; ++i) totals[i] = joined(totals[i], next[i]);
    }
    for (int64_t i = 0; i < count; ++i) totals[i] = finished(totals[i], given.ranks);
    write_numbers(totals, count, to);
}

SK_INLINE void reduce_tile(const Contributions& given, int64_t first, int64_t count, Element* to) {
    if (given.ranks == 2 && !__is_same(Element, Float16)) reduce_two(given.of(0, first), given.of(1, first), count, 2, to);
    else reduce_all(given, first, count, to);
}

// This block's share of `count` elements.
SK_INLINE Range element_share(int64_t count) {
    const Range bytes = byte_share(count * int64_t(sizeof(Element)));
    return {bytes.begin / int64_t(sizeof(Element)), bytes.end / int64_t(sizeof(Element))};
}

SK_INLINE void copy_elements(Element* to, const Element* from, int64_t count, bool past_caches) {
    copy_bytes(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from), count * int64_t(sizeof(Element)),
               past_caches);
}

}  // namespace

// y[i] is the reduction of the elements first + i of all ranks.
extern "C" void reduce(const Element* x, const char* window, Element* y, int64_t first, int64_t count, int64_t rank,
                       int64_t ranks, int64_t past_caches) {
    const Contributions given{Slots(window, rank, ranks), x, rank, ranks};
    const Range share = element_share(count);
    alignas(64) Element tile[kTile];
    for (int64_t at = share.begin; at < share.end; at += kTile) {
        const int64_t some = least(kTile, share.end - at);
        reduce_tile(given, first + at, some, past_caches ? tile : y + at);
        if (past_caches) copy_elements(y + at, tile, some, true);
    }
    if (past_caches) order_stores_past_caches();
}

// This rank's part of a large all_reduce: the elements [first, first + count) of y, and the same in the slot of `sums`.
extern "C" void reduce_part(const Element* x, const char* window, Element* y, char* sums, int64_t first, int64_t count,
                            int64_t rank, int64_t ranks, int64_t past_caches) {
    const Contributions given{Slots(window, rank, ranks), x, rank, ranks};
    Element* const slot = reinterpret_cast<Element*>(Slots(sums, rank, ranks).of(rank));
    const Range share = element_share(count);
    alignas(64) Element tile[kTile];
    for (int64_t at = share.begin; at < share.end; at += kTile) {
        const int64_t some = least(kTile, share.end - at);
        reduce_tile(given, first + at, some, tile);
        copy_elements(slot + at, tile, some, past_caches != 0);
        copy_elements(y + first + at, tile, some, past_caches != 0);
    }
    if (past_caches) order_stores_past_caches();
}
