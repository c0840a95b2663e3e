// share.h: which iterations of a loop belong to this block: equal parts, the first ones larger by one, as in libgomp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "superkernel/kernel.h"

namespace sk {

struct Share {
    int64_t first, last;  // values of the loop variable
};

constexpr int64_t iterations(int64_t first, int64_t last, int64_t step) {
    return last > first ? (last - first + step - 1) / step : 0;
}

// Iterations [first, last) of `count` that this block runs.
inline Share share_of(int64_t count) {
    const int64_t blocks = block_num(), block = block_idx();
    const int64_t each = count / blocks, more = count % blocks;
    const int64_t first = block * each + (block < more ? block : more);
    return {first, first + each + (block < more ? 1 : 0)};
}

inline Share block_share(int64_t first, int64_t last, int64_t step) {
    const Share mine = share_of(iterations(first, last, step));
    const int64_t end = first + mine.last * step;
    return {first + mine.first * step, end < last ? end : last};
}

// A collapsed loop nest: rows of columns, the innermost loop being the columns.
struct NestShare {
    int64_t first_row, last_row;
    int64_t columns_per_row;
    Share mine;

    NestShare(int64_t rows, int64_t columns) : columns_per_row(columns), mine(share_of(rows * columns)) {
        const bool some = mine.last > mine.first;
        first_row = some ? mine.first / columns : 0;
        last_row = some ? (mine.last - 1) / columns + 1 : 0;
    }

    Share columns(int64_t row, int64_t first, int64_t step) const {
        const int64_t begin = row * columns_per_row, end = begin + columns_per_row;
        const int64_t from = mine.first > begin ? mine.first - begin : 0;
        const int64_t to = mine.last < end ? mine.last - begin : columns_per_row;
        return {first + from * step, first + to * step};
    }
};

// Bytes that `count` values take in a workspace, rounded up to cache lines.
template <class T>
constexpr size_t room_for(size_t count) {
    return (count * sizeof(T) + 63) / 64 * 64;
}

}  // namespace sk
