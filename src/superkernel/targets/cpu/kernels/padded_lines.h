// padded_lines.h: lines of a convolution's input as floats with zeros around them, and register tiles that read patches
// where they lie in them.
//
// Patches of neighbouring positions overlap: lines are copied once, where a matrix of patches has each element as often
// as the filter has taps.
#pragma once

#include "patches.h"

namespace {

// Input lines from `first` on; the column -padding is the first of a line. Elements are columns, then channels.
struct PaddedLines {
    int64_t first, count, width;  // width in floats
    float* at;
};

// Whether patches can be read in lines: of images in two dimensions or one, in one chunk.
template <class T>
SK_INLINE bool reads_lines(const Convolution<T>& p, const Phase& phase) {
    return !p.transposed && p.axes[0].filter == 1 && p.axes[0].out == 1 && p.axes[0].padding == 0 && phase.taps > 1 &&
           phase.taps * p.channels <= kPatchChunk;
}

SK_INLINE int64_t padded_width(const Axis& columns, int64_t channels) {
    return ((columns.out - 1) * columns.stride + (columns.filter - 1) * columns.dilation + 1) * channels;
}

// Lines of outputs whose padded lines fit `room` floats. 0: without the first of them no register tile is left.
SK_INLINE int64_t fitting_lines(const Axis& rows, const Axis& columns, int64_t channels, int64_t room) {
    const int64_t spare = room / padded_width(columns, channels) - (rows.filter - 1) * rows.dilation - 1;
    const int64_t lines = spare < 0 ? 0 : spare / rows.stride + 1;
    return (lines - 1) * columns.out < kTileRows ? 0 : lines;
}

// Copies the lines that the outputs of lines [begin, end) need.
template <class T>
SK_NOINLINE PaddedLines pad_lines(const Convolution<T>& p, const T* image, int64_t begin, int64_t end, float* to) {
    const Axis &rows = p.axes[1], &columns = p.axes[2];
    const int64_t width = padded_width(columns, p.channels), pixel = p.of_input.axis[2];
    const int64_t first = begin * rows.stride - rows.padding;
    const int64_t count = (end - 1 - begin) * rows.stride + (rows.filter - 1) * rows.dilation + 1;
    const int64_t before = least(columns.padding * p.channels, width);
    const int64_t inside = least(columns.input * p.channels, width - before);
    float* line = to;
    for (int64_t y = first; y < first + count; ++y, line += width) {
        if (!is_inside(y, rows.input)) {
            fill_zeros(line, 1, width);
            continue;
        }
        const T* from = image + y * p.of_input.axis[1];
        fill_zeros(line, 1, before);
        if (pixel == p.channels)
            copy_floats(from, 1, inside, line + before, 1);
        else
            for (int64_t i = 0; i < inside; i += p.channels)
                copy_floats(from + i / p.channels * pixel, p.of_input.channel, p.channels, line + before + i, 1);
        fill_zeros(line + before + inside, 1, width - before - inside);
    }
    return {first, count, width, to};
}

// Where the elements of a patch lie in padded lines, relative to its first, in the order of packed filters.
template <class T>
SK_INLINE void patch_offsets(const Convolution<T>& p, ElementOrder order, int64_t width, int64_t* offsets) {
    const Axis &rows = p.axes[1], &columns = p.axes[2];
    const bool taps_inner = order == ElementOrder::kTapsInner;
    const int64_t taps = rows.filter * columns.filter;
    for (int64_t y = 0, tap = 0; y < rows.filter; ++y)
        for (int64_t x = 0; x < columns.filter; ++x, ++tap)
            for (int64_t c = 0; c < p.channels; ++c)
                offsets[taps_inner ? c * taps + tap : tap * p.channels + c] =
                    y * rows.dilation * width + x * columns.dilation * p.channels + c;
}

// sums = patches times Vectors vectors of columns of a panel of filters: register_tile over elements at offsets
template <int Vectors>
SK_NOINLINE void patch_tile(const float* const (&patches)[kTileRows], const int64_t* offsets, const float* b,
                            int64_t depth, float* sums, int64_t ld) {
    Vector total[kTileRows][Vectors] = {};
    for (int64_t i = 0; i < depth; ++i, b += kTileColumns) {
        Vector columns[Vectors];
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            columns[v] = load(b + v * kLanes);
            pin_register(columns[v]);
        }
        SK_UNROLL
        for (int r = 0; r < kTileRows; ++r) {
            const Vector factor = broadcast(patches[r][offsets[i]]);
            SK_UNROLL
            for (int v = 0; v < Vectors; ++v) total[r][v] = multiply_add(factor, columns[v], total[r][v]);
        }
    }
    SK_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) store(sums + r * ld + v * kLanes, total[r][v]);
    }
}

SK_INLINE void patch_tile_of(int64_t vectors, const float* const (&patches)[kTileRows], const int64_t* offsets,
                             const float* b, int64_t depth, float* sums, int64_t ld) {
    if (vectors == 1) return patch_tile<1>(patches, offsets, b, depth, sums, ld);
    if (vectors == 2) return patch_tile<2>(patches, offsets, b, depth, sums, ld);
    if (vectors == 3) return patch_tile<kTileVectors == 4 ? 3 : 1>(patches, offsets, b, depth, sums, ld);
    return patch_tile<kTileVectors>(patches, offsets, b, depth, sums, ld);
}

}  // namespace
