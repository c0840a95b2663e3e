// depthwise_window.h: lines of outputs of filters with three or five columns, in blocks of neighbouring outputs.
//
// What the outputs of a block read of a row of the input is loaded once, and not once per tap. The sum of an output has
// the order of depthwise.cpp: over the taps inside of the image.
#pragma once

#include "depthwise_lines.h"

namespace {

constexpr int kBlock = 4;  // outputs that are computed together

// The rows of taps of a line that are inside of the image: where each begins for column 0, and its first tap.
template <class T>
struct TapRows {
    static constexpr int64_t kMost = 32;
    int64_t count;
    const T* input[kMost];
    int64_t filter[kMost];
};

// One line of outputs for up to kLanes channels; `rows` are those of channel 0.
template <class T>
struct WindowLine {
    const TapRows<T>* rows;
    int64_t channel, channels;
    T* out;
    int64_t pixel, out_step;
    const float *factors, *bias;  // taps are kTileColumns apart
};

template <bool Whole, class T>
SK_INLINE Vector load_channels(const T* from, int64_t channels) {
    if (Whole) return load_floats(from);
    T some[kLanes] = {};
    for (int64_t i = 0; i < channels; ++i) some[i] = from[i];
    return load_floats(some);
}
template <bool Whole>
SK_INLINE Vector load_channels(const float* from, int64_t channels) {
    return Whole ? load(from) : load_partial(from, channels);
}

template <bool Whole, class T>
SK_INLINE void store_channels(T* to, Vector value, int64_t channels) {
    if (Whole) return store_floats(to, value);
    alignas(64) float some[kLanes];
    store(some, value);
    for (int64_t i = 0; i < channels; ++i) from_float(some[i], to[i]);
}

// The kBlock outputs from `column` on. The first `Before` columns of what they read are outside of the image, and the
// last `Behind`.
template <int Filter, int Stride, bool Whole, int Before, int Behind, class T>
SK_INLINE void compute_block(const WindowLine<T>& part, int64_t column) {
    constexpr int kRead = (kBlock - 1) * Stride + Filter;
    const int64_t pixel = part.pixel, first = part.channel + column * Stride * pixel, rows = part.rows->count;
    Vector sums[kBlock] = {};
    for (int64_t row = 0; row < rows; ++row) {
        const T* at = part.rows->input[row] + first;
        const float* factors = part.factors + part.rows->filter[row];
        Vector inputs[kRead];
        SK_UNROLL
        for (int i = Before; i < kRead - Behind; ++i) {
            inputs[i] = load_channels<Whole>(at + i * pixel, part.channels);
            pin_register(inputs[i]);
        }
        SK_UNROLL
        for (int x = 0; x < Filter; ++x) {
            Vector factor = load(factors + x * kTileColumns);
            pin_register(factor);
            SK_UNROLL
            for (int i = 0; i < kBlock; ++i) {
                const int read = i * Stride + x;
                if (read >= Before && read < kRead - Behind) sums[i] = multiply_add(inputs[read], factor, sums[i]);
            }
        }
    }
    T* out = part.out + column * part.out_step;
    const Vector added = load(part.bias);
    SK_UNROLL
    for (int i = 0; i < kBlock; ++i) store_channels<Whole>(out + i * part.out_step, sums[i] + added, part.channels);
}

// An output for which any column of the filter may be outside.
template <bool Whole, class T>
SK_INLINE void compute_border(const Axis& columns, const WindowLine<T>& part, int64_t column) {
    const TapRange taps = taps_inside(columns, column);
    Vector sum = {};
    for (int64_t row = 0; row < part.rows->count; ++row) {
        const T* at = part.rows->input[row] + part.channel + column * columns.stride * part.pixel;
        const float* factors = part.factors + part.rows->filter[row];
        for (int64_t x = taps.begin; x < taps.end; ++x)
            sum = multiply_add(load_channels<Whole>(at + x * part.pixel, part.channels),
                               load(factors + x * kTileColumns), sum);
    }
    store_channels<Whole>(part.out + column * part.out_step, sum + load(part.bias), part.channels);
}

// The last block of a line ends with it, and may compute outputs again that the block before it has.
template <int Filter, int Stride, bool Whole, class T>
SK_NOINLINE void compute_blocks(const Images& images, const WindowLine<T> part) {
    constexpr int kHalf = Filter / 2;
    const Axis& columns = images.axes[2];
    const Range inner = images.inner;
    const int64_t behind = (columns.out - 1) * Stride - columns.padding + Filter - columns.input;
    // Outputs of the first or last block that have columns outside: fewer than a block has.
    const bool has_last = behind > 0 && behind <= kHalf && columns.out - kBlock >= inner.begin;
    int64_t column = 0;
    if (columns.padding == kHalf && inner.end >= kBlock) {
        compute_block<Filter, Stride, Whole, kHalf, 0>(part, 0);
        column = kBlock;
    }
    for (; column < inner.begin; ++column) compute_border<Whole>(columns, part, column);
    for (; column + kBlock <= inner.end; column += kBlock)
        compute_block<Filter, Stride, Whole, 0, 0>(part, column);
    if (has_last && behind == 1) return compute_block<Filter, Stride, Whole, 0, 1>(part, columns.out - kBlock);
    if (has_last) return compute_block<Filter, Stride, Whole, 0, kHalf>(part, columns.out - kBlock);
    if (column < inner.end && inner.end - kBlock >= inner.begin) {
        compute_block<Filter, Stride, Whole, 0, 0>(part, inner.end - kBlock);
        column = inner.end;
    }
    for (; column < columns.out; ++column) compute_border<Whole>(columns, part, column);
}

template <int Filter, class T>
SK_INLINE void compute_part(const Images& images, const WindowLine<T>& part) {
    const bool whole = part.channels == kLanes;
    if (images.axes[2].stride == 1)
        return whole ? compute_blocks<Filter, 1, true>(images, part) : compute_blocks<Filter, 1, false>(images, part);
    return whole ? compute_blocks<Filter, 2, true>(images, part) : compute_blocks<Filter, 2, false>(images, part);
}

SK_INLINE bool fits_blocks(const Images& images) {
    const Axis* axes = images.axes;
    return (axes[2].filter == 3 || axes[2].filter == 5) && axes[2].dilation == 1 && axes[2].stride <= 2 &&
           axes[0].filter * axes[1].filter <= TapRows<float>::kMost;
}

template <class T>
SK_NOINLINE void compute_line_in_blocks(const Images& images, const Line<T>& line, const PartFilters& filters) {
    const Axis* axes = images.axes;
    const int64_t depth = axes[0].dilation * images.of_input.axis[0], row = axes[1].dilation * images.of_input.axis[1];
    TapRows<T> rows;
    rows.count = 0;
    for (int64_t z = line.depths.begin; z < line.depths.end; ++z) {
        for (int64_t y = line.rows.begin; y < line.rows.end; ++y, ++rows.count) {
            rows.input[rows.count] = line.input + z * depth + y * row;
            rows.filter[rows.count] = (z * axes[1].filter + y) * axes[2].filter * kTileColumns;
        }
    }
    for (int64_t c = 0; c < filters.channels; c += kLanes) {
        const WindowLine<T> part = {
            &rows, c, least(kLanes, filters.channels - c), line.out + c, images.of_input.axis[2],
            images.of_out.axis[2], filters.at(c), filters.bias + c};
        if (axes[2].filter == 3)
            compute_part<3>(images, part);
        else
            compute_part<5>(images, part);
    }
}

}  // namespace
