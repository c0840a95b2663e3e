// sorting.cpp: the first elements of every line of a tensor in sorted order, and where they were: sort and topk.
//
// Compiled with SK_ELEMENT. Elements are compared as unsigned keys: NaN is the largest, zeros are equal, and what comes
// first in the order has the smallest key. Equal elements stay in the order in which they lie.
#include "strided_rows.h"

namespace {

template <int Bytes>
struct KeyOf {
    using type = uint32_t;
};
template <>
struct KeyOf<8> {
    using type = uint64_t;
};
using T = SK_ELEMENT;
using Number = Kind<T>::Number;
using Key = KeyOf<sizeof(Number)>::type;

constexpr Key kSign = Key(1) << (8 * sizeof(Key) - 1);

SK_INLINE Key key_of(float value) {
    const uint32_t bits = same_bits<uint32_t>(value == 0 ? 0.0f : value);
    return value != value ? ~Key(0) : Key(bits >> 31 ? ~bits : bits | 1u << 31);
}
SK_INLINE Key key_of(double value) {
    const uint64_t bits = same_bits<uint64_t>(value == 0 ? 0.0 : value);
    return value != value ? ~Key(0) : Key(bits >> 63 ? ~bits : bits | uint64_t(1) << 63);
}
template <class Integer>
SK_INLINE Key key_of(Integer value) {
    return Key(int64_t(value)) ^ kSign;  // unsigned types are narrower than a key: they are above zero
}

constexpr int64_t kFew = 64;  // as many are kept sorted on the stack
constexpr int64_t kChunk = 32;

// One line: where its elements are, and where the first `count` of them go.
struct Line {
    const T* from;
    T* values;
    int64_t* indices;
    int64_t from_step, values_step, indices_step;
    int64_t length, count;
    Key flip;  // all ones: the largest first

    SK_INLINE Key key(int64_t i) const { return key_of(number(from[i * from_step])) ^ flip; }
    SK_INLINE void put_at(int64_t place, int64_t index) const {
        values[place * values_step] = from[index * from_step];
        indices[place * indices_step] = index;
    }
};

// Whether any of the next kChunk elements comes before `last`.
template <bool Dense>
SK_INLINE bool any_before(const Line& line, int64_t at, Key last) {
    Key found = 0;
    for (int64_t i = 0; i < kChunk; ++i) {
        const Key key = key_of(number(line.from[(at + i) * (Dense ? 1 : line.from_step)])) ^ line.flip;
        found |= Key(key < last);
    }
    return found != 0;
}

// Keeps the best so far in order; most elements of a long line are only compared with the last of them.
SK_APART void select_few(const Line& line) {
    Key keys[kFew];
    int64_t indices[kFew];
    int64_t held = 0;
    for (int64_t i = 0; i < line.length;) {
        const int64_t rest = line.length - i, end = i + (rest < kChunk ? rest : kChunk);
        if (held == line.count && rest >= kChunk) {
            const Key last = keys[held - 1];
            if (!(line.from_step == 1 ? any_before<true>(line, i, last) : any_before<false>(line, i, last))) {
                i = end;
                continue;
            }
        }
        for (; i < end; ++i) {
            const Key key = line.key(i);
            if (held == line.count) {
                if (key >= keys[held - 1]) continue;
                --held;
            }
            int64_t place = held++;
            for (; place > 0 && keys[place - 1] > key; --place) {
                keys[place] = keys[place - 1];
                indices[place] = indices[place - 1];
            }
            keys[place] = key;
            indices[place] = i;
        }
    }
    for (int64_t place = 0; place < held; ++place) line.put_at(place, indices[place]);
}

struct Lists {
    Key* keys;
    uint32_t* order;
};

// By one byte of the key after the other, from the last; bytes that are the same everywhere cost nothing.
SK_APART void sort_by_bytes(const Line& line, Lists now, Lists next) {
    constexpr int digits = sizeof(Key);
    uint32_t counts[digits][256] = {};
    for (int64_t i = 0; i < line.length; ++i) {
        const Key key = line.key(i);
        now.keys[i] = key;
        now.order[i] = uint32_t(i);
        SK_UNROLL
        for (int digit = 0; digit < digits; ++digit) ++counts[digit][key >> 8 * digit & 255];
    }
    for (int digit = 0; digit < digits; ++digit) {
        uint32_t* places = counts[digit];
        if (places[now.keys[0] >> 8 * digit & 255] == uint32_t(line.length)) continue;
        uint32_t total = 0;
        for (int value = 0; value < 256; ++value) {
            const uint32_t count = places[value];
            places[value] = total;
            total += count;
        }
        for (int64_t i = 0; i < line.length; ++i) {
            const uint32_t place = places[now.keys[i] >> 8 * digit & 255]++;
            next.keys[place] = now.keys[i];
            next.order[place] = now.order[i];
        }
        const Lists old = now;
        now = next;
        next = old;
    }
    for (int64_t place = 0; place < line.count; ++place) line.put_at(place, now.order[place]);
}

}  // namespace

// Each block has its own part of `room`: two lists of `length` keys and indices.
extern "C" void sorted_lines(const T* self, T* values, int64_t* indices, char* room, int64_t length,
                             int64_t count, int64_t largest, SK_AROUND, SK_LINE(self), SK_LINE(values),
                             SK_LINE(indices)) {
    const Around around = SK_AROUND_OF;
    const LineStrides of_self = SK_LINE_OF(self), of_values = SK_LINE_OF(values), of_indices = SK_LINE_OF(indices);
    if (count == 0) return;
    Key* keys = reinterpret_cast<Key*>(room + sk::block_idx() * length * 2 * int64_t(sizeof(Key) + 4));
    uint32_t* order = reinterpret_cast<uint32_t*>(keys + 2 * length);
    const Part lines = part_of_block(around.count());
    for (int64_t at = lines.begin; at < lines.end; ++at) {
        const Line line = {self + of_self.at(around, at),
                           values + of_values.at(around, at),
                           indices + of_indices.at(around, at),
                           of_self.along,
                           of_values.along,
                           of_indices.along,
                           length,
                           count,
                           largest ? ~Key(0) : Key(0)};
        if (count <= kFew) select_few(line);
        else sort_by_bytes(line, {keys, order}, {keys + length, order + length});
    }
}
