// problem.h: the description of one matmul call, gathering of its rows, and the epilogue that stores results.
#pragma once

#include "block_share.h"

namespace {

struct Strides {
    int64_t batch, row, column;
    SK_INLINE int64_t at(int64_t batch_index, int64_t row_index, int64_t column_index) const {
        return batch_index * batch + row_index * row + column_index * column;
    }
};

// out = alpha * (a @ b) + beta * c; without c: alpha * (a @ b)
template <class T>
struct Problem {
    const T *a, *b, *c;
    T* out;
    int64_t batches, m, n, k;
    Strides of_a, of_b, of_c, of_out;
    float alpha, beta;
};

SK_INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
SK_INLINE int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }
SK_INLINE int64_t round_up(int64_t x, int64_t y) { return divide_up(x, y) * y; }

// Rows of a matrix as floats, `ld` apart. Parts > 1: each span is in the order of its parts, and zeros fill the last.
template <int Parts, class T>
SK_NOINLINE void gather_rows(const T* from, int64_t row, int64_t column, int64_t rows, int64_t count, float* to,
                          int64_t ld) {
    constexpr int span = Parts * kLanes;
    const auto place = [](int64_t i) { return i / span * span + i % Parts * kLanes + i % span / Parts; };
    for (int64_t r = 0; r < rows; ++r, from += row, to += ld) {
        int64_t done = 0;
        if (column == 1 && Parts == kParts<T>) {
            for (; done + span <= count; done += span) {
                SK_UNROLL
                for (int part = 0; part < Parts; ++part)
                    store(to + done + part * kLanes, part_of(load_span(from + done), part));
            }
        }
        for (; done < count; ++done) to[place(done)] = to_float(from[done * column]);
        for (; done < round_up(count, span); ++done) to[place(done)] = 0;
    }
}

// Epilogue: the sums of a tile, `ld` apart, are scaled, added to c, rounded once and stored. They are overwritten.
template <class T>
SK_NOINLINE void finish(const Problem<T>& p, int64_t batch, int64_t row, int64_t column, int64_t rows, int64_t columns,
                     float* sums, int64_t ld) {
    for (int64_t r = 0; r < rows; ++r, sums += ld) {
        T* __restrict out = p.out + p.of_out.at(batch, row + r, column);
        if (p.c != nullptr) {
            const T* __restrict c = p.c + p.of_c.at(batch, row + r, column);
            const int64_t step = p.of_c.column;
            if (step == 1)
                for (int64_t i = 0; i < columns; ++i)
                    sums[i] = multiply_add(p.alpha, sums[i], p.beta * to_float(c[i]));
            else
                for (int64_t i = 0; i < columns; ++i)
                    sums[i] = multiply_add(p.alpha, sums[i], p.beta * to_float(c[i * step]));
        } else if (p.alpha != 1) {
            for (int64_t i = 0; i < columns; ++i) sums[i] *= p.alpha;
        }
        const int64_t step = p.of_out.column;
        if (step == 1)
            for (int64_t i = 0; i < columns; ++i) from_float(sums[i], out[i]);
        else
            for (int64_t i = 0; i < columns; ++i) from_float(sums[i], out[i * step]);
    }
}

}  // namespace
