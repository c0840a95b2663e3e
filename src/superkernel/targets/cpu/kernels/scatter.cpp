// scatter.cpp: elements that go where an index says: scatter_reduce, index_put, histc, searchsorted.
//
// Compiled with SK_ELEMENT and the operator's own definitions. Blocks divide rows or destinations, never the
// elements of one destination: those are combined in their order.
#include "strided_rows.h"

namespace {

using T = SK_ELEMENT;
using Number = Kind<T>::Number;

}  // namespace

#if defined(SK_SCATTER_REDUCE)

namespace {

// Elements narrower than a float are combined as floats and rounded once, at the end.
using Held = Kind<T>::Number;
constexpr bool kRounds = sizeof(Held) != sizeof(T);

enum class Reduce : int64_t { kSum, kProd, kMean, kAmax, kAmin };

template <class N>
SK_INLINE N combined(Reduce reduce, N x, N y) {
    constexpr bool whole = N(0.5) == N(0);
    switch (reduce) {
        case Reduce::kProd: return whole ? N(uint64_t(x) * uint64_t(y)) : x * y;
        case Reduce::kAmax: return is_nan(x) || x > y ? x : y;
        case Reduce::kAmin: return is_nan(x) || x < y ? x : y;
        default: return whole ? N(uint64_t(x) + uint64_t(y)) : x + y;
    }
}

// Integers are divided towards minus infinity.
template <class N>
SK_INLINE N divided(N sum, int64_t count) {
    if (N(0.5) != N(0)) return sum / N(count);
    const int64_t wide = int64_t(sum), down = wide % count < 0 ? 1 : 0;
    return N(wide / count - down);
}

}  // namespace

// Each block has its own part of `room`: numbers and counts of one row of self.
extern "C" void scatter_reduce(T* self, const int64_t* index, const T* src, char* room, int64_t length, int64_t size,
                               int64_t how, int64_t include_self, SK_OUTER_SIZES, SK_ROW_STRIDES(self), SK_ROW_STRIDES(index),
                               SK_ROW_STRIDES(src)) {
    const OuterSizes outer = SK_OUTER_SIZES_OF;
    const RowStrides of_self = SK_ROW_STRIDES_OF(self), of_index = SK_ROW_STRIDES_OF(index), of_src = SK_ROW_STRIDES_OF(src);
    const Reduce reduce = Reduce(how);
    const bool counts = !include_self || reduce == Reduce::kMean;
    Held* held = reinterpret_cast<Held*>(room + sk::block_idx() * size * 16);
    int64_t* hits = reinterpret_cast<int64_t*>(room + sk::block_idx() * size * 16 + size * 8);
    const Range rows = block_share(outer.count());
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        T* to = self + of_self.at(outer, row);
        const int64_t* where = index + of_index.at(outer, row);
        const T* from = src + of_src.at(outer, row);
        for (int64_t i = 0; i < size; ++i) {
            hits[i] = 0;
            if (kRounds) held[i] = number(to[i * of_self.along]);
        }
        for (int64_t i = 0; i < length; ++i) {
            const int64_t place = where[i * of_index.along];
            if (place < 0 || place >= size) return sk::fail("scatter_reduce: an index is outside of its dimension");
            const Held next = number(from[i * of_src.along]);
            T& element = to[place * of_self.along];
            const Held before = kRounds ? held[place] : Held(number(element));
            const bool first = counts && hits[place]++ == 0 && !include_self;
            const Held after = first ? next : combined(reduce, before, next);
            if (kRounds) held[place] = after;
            else put(after, element);
        }
        for (int64_t i = 0; i < size; ++i) {
            T& element = to[i * of_self.along];
            if (kRounds) put(held[i], element);
            if (reduce == Reduce::kMean && hits[i] > 0) {
                const Held sum = number(element);
                put(divided(sum, hits[i] + (include_self ? 1 : 0)), element);
            }
        }
    }
}

#elif defined(SK_INDEX_PUT)

namespace {

// Where an index sends an element: a stride and a size of self for each of up to three.
struct Indexed {
    const int64_t* at;
    int64_t step, size, stride;
};

}  // namespace

#define SK_INDEX(n) const int64_t *index##n, int64_t step##n, int64_t size_of##n, int64_t stride##n
#define SK_INDEX_OF(n) {index##n, step##n, size_of##n, stride##n}

extern "C" void index_put(T* self, const T* values, int64_t length, int64_t indices, int64_t accumulate, SK_INDEX(0),
                          SK_INDEX(1), SK_INDEX(2), SK_OUTER_SIZES, SK_ROW_STRIDES(self), SK_ROW_STRIDES(values)) {
    const OuterSizes outer = SK_OUTER_SIZES_OF;
    const RowStrides of_self = SK_ROW_STRIDES_OF(self), of_values = SK_ROW_STRIDES_OF(values);
    const Indexed all[] = {SK_INDEX_OF(0), SK_INDEX_OF(1), SK_INDEX_OF(2)};
    const Range rows = block_share(outer.count());
    for (int64_t i = 0; i < length; ++i) {
        int64_t place = 0;
        for (int64_t n = 0; n < indices; ++n) {
            int64_t index = all[n].at[i * all[n].step];
            if (index < 0) index += all[n].size;
            if (index < 0 || index >= all[n].size) return sk::fail("index_put: an index is outside of its dimension");
            place += index * all[n].stride;
        }
        for (int64_t row = rows.begin; row < rows.end; ++row) {
            T& to = self[place + of_self.at(outer, row)];
            const T value = values[i * of_values.along + of_values.at(outer, row)];
            if (!accumulate) to = value;
            else put(number(to) + number(value), to);
        }
    }
}

#elif defined(SK_HISTC)

// Every block reads all elements and counts those of its own bins.
extern "C" void histc(const T* self, T* out, int64_t length, int64_t bins, double least, double most, int64_t step,
                      SK_OUTER_SIZES, SK_ROW_STRIDES(self)) {
    const OuterSizes outer = SK_OUTER_SIZES_OF;
    const RowStrides of_self = SK_ROW_STRIDES_OF(self);
    const int64_t rows = outer.count();
    T low = T(least), high = T(most);
    if (low == high && rows * length > 0) {
        low = high = self[0];
        bool finite = true;
        for (int64_t row = 0; row < rows; ++row) {
            const T* from = self + of_self.at(outer, row);
            for (int64_t i = 0; i < length; ++i) {
                const T value = from[i * of_self.along];
                finite = finite && value - value == 0;
                if (value < low) low = value;
                if (value > high) high = value;
            }
        }
        if (!finite) return sk::fail("histc: the range of the elements is not finite");
    }
    if (low == high) low -= 1, high += 1;
    const Range mine = block_share(bins);
    for (int64_t bin = mine.begin; bin < mine.end; ++bin) out[bin * step] = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const T* from = self + of_self.at(outer, row);
        for (int64_t i = 0; i < length; ++i) {
            const T value = from[i * of_self.along];
            if (!(value >= low && value <= high)) continue;
            int64_t bin = int64_t((value - low) * T(bins) / (high - low));
            if (bin >= bins) bin = bins - 1;
            if (bin >= mine.begin && bin < mine.end) out[bin * step] += 1;
        }
    }
}

#elif defined(SK_SEARCH)

using Found = SK_SEARCH;

// Each value is a row of length one; `sequence` has the strides of the row that is searched.
extern "C" void search(const T* sequence, const T* values, Found* out, const int64_t* sorter, int64_t length,
                       int64_t right, int64_t sorted, SK_OUTER_SIZES, SK_ROW_STRIDES(values), SK_ROW_STRIDES(out), SK_ROW_STRIDES(sequence),
                       SK_ROW_STRIDES(sorter)) {
    const OuterSizes outer = SK_OUTER_SIZES_OF;
    const RowStrides of_values = SK_ROW_STRIDES_OF(values), of_out = SK_ROW_STRIDES_OF(out), of_sequence = SK_ROW_STRIDES_OF(sequence),
                      of_sorter = SK_ROW_STRIDES_OF(sorter);
    const Range mine = block_share(outer.count());
    for (int64_t at = mine.begin; at < mine.end; ++at) {
        const Number value = number(values[of_values.at(outer, at)]);
        const T* from = sequence + of_sequence.at(outer, at);
        const int64_t* order = sorted ? sorter + of_sorter.at(outer, at) : nullptr;
        int64_t begin = 0, end = length;
        while (begin < end) {  // NaN is behind all
            const int64_t middle = begin + (end - begin) / 2;
            const int64_t index = sorted ? order[middle * of_sorter.along] : middle;
            if (index < 0 || index >= length) return sk::fail("searchsorted: sorter has an index outside of the sequence");
            const Number there = number(from[index * of_sequence.along]);
            if (right ? !(there > value) : !(there >= value)) begin = middle + 1;
            else end = middle;
        }
        out[of_out.at(outer, at)] = Found(begin);
    }
}

#endif
