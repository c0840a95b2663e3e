// sorting.cpp: the first elements of every row of a tensor in sorted order, and their indices: sort and topk.
//
// Compiled with SK_ELEMENT. Elements are compared as unsigned keys: NaN is the largest, zeros are equal, and the first
// element of the order has the smallest key. The sort is stable.
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

constexpr int64_t kMostSelected = 64;  // up to so many are kept sorted on the stack
constexpr int64_t kChunk = 32;

// One row: its elements, and where the first `count` of them are stored.
struct SortedRow {
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
SK_INLINE bool any_before(const SortedRow& row, int64_t at, Key last) {
    Key found = 0;
    for (int64_t i = 0; i < kChunk; ++i) {
        const Key key = key_of(number(row.from[(at + i) * (Dense ? 1 : row.from_step)])) ^ row.flip;
        found |= Key(key < last);
    }
    return found != 0;
}

// Keeps the best so far in order; most elements of a long row are compared with the last of these only.
SK_NOINLINE void select_first(const SortedRow& row) {
    Key keys[kMostSelected];
    int64_t indices[kMostSelected];
    int64_t held = 0;
    for (int64_t i = 0; i < row.length;) {
        const int64_t rest = row.length - i, end = i + (rest < kChunk ? rest : kChunk);
        if (held == row.count && rest >= kChunk) {
            const Key last = keys[held - 1];
            if (!(row.from_step == 1 ? any_before<true>(row, i, last) : any_before<false>(row, i, last))) {
                i = end;
                continue;
            }
        }
        for (; i < end; ++i) {
            const Key key = row.key(i);
            if (held == row.count) {
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
    for (int64_t place = 0; place < held; ++place) row.put_at(place, indices[place]);
}

struct Lists {
    Key* keys;
    uint32_t* order;
};

// Radix sort by the bytes of the key, least significant first; a byte that all keys share is skipped.
SK_NOINLINE void sort_by_bytes(const SortedRow& row, Lists now, Lists next) {
    constexpr int digits = sizeof(Key);
    uint32_t counts[digits][256] = {};
    for (int64_t i = 0; i < row.length; ++i) {
        const Key key = row.key(i);
        now.keys[i] = key;
        now.order[i] = uint32_t(i);
        SK_UNROLL
        for (int digit = 0; digit < digits; ++digit) ++counts[digit][key >> 8 * digit & 255];
    }
    for (int digit = 0; digit < digits; ++digit) {
        uint32_t* places = counts[digit];
        if (places[now.keys[0] >> 8 * digit & 255] == uint32_t(row.length)) continue;
        uint32_t total = 0;
        for (int value = 0; value < 256; ++value) {
            const uint32_t count = places[value];
            places[value] = total;
            total += count;
        }
        for (int64_t i = 0; i < row.length; ++i) {
            const uint32_t place = places[now.keys[i] >> 8 * digit & 255]++;
            next.keys[place] = now.keys[i];
            next.order[place] = now.order[i];
        }
        const Lists old = now;
        now = next;
        next = old;
    }
    for (int64_t place = 0; place < row.count; ++place) row.put_at(place, now.order[place]);
}

}  // namespace

// Each block has its own part of `room`: two lists of `length` keys and indices.
extern "C" void sorted_rows(const T* self, T* values, int64_t* indices, char* room, int64_t length,
                             int64_t count, int64_t largest, SK_OUTER_SIZES, SK_ROW_STRIDES(self), SK_ROW_STRIDES(values),
                             SK_ROW_STRIDES(indices)) {
    const OuterSizes outer = SK_OUTER_SIZES_OF;
    const RowStrides of_self = SK_ROW_STRIDES_OF(self), of_values = SK_ROW_STRIDES_OF(values), of_indices = SK_ROW_STRIDES_OF(indices);
    if (count == 0) return;
    Key* keys = reinterpret_cast<Key*>(room + sk::block_idx() * length * 2 * int64_t(sizeof(Key) + 4));
    uint32_t* order = reinterpret_cast<uint32_t*>(keys + 2 * length);
    const Range rows = block_share(outer.count());
    for (int64_t at = rows.begin; at < rows.end; ++at) {
        const SortedRow row = {self + of_self.at(outer, at),
                           values + of_values.at(outer, at),
                           indices + of_indices.at(outer, at),
                           of_self.along,
                           of_values.along,
                           of_indices.along,
                           length,
                           count,
                           largest ? ~Key(0) : Key(0)};
        if (count <= kMostSelected) select_first(row);
        else sort_by_bytes(row, {keys, order}, {keys + length, order + length});
    }
}
