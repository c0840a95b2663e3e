// depthwise_window.h: lines of outputs of filters with three or five columns, in blocks of neighbouring outputs.
//
// What the outputs of a block read of a row of the input is loaded once, and not once per tap. The sum of an output has
// the order of depthwise.cpp: over the taps inside of the image.
#pragma once

#include "depthwise_lines.h"

namespace {

// Outputs that are computed together: as many sums as keep the multipliers busy. Images are often multiples of 7 wide.
constexpr int kBlock = kRegisters == 32 ? 7 : 4;

// The rows of taps that are inside of the image: where each begins for column 0, and its first tap.
struct TapRows {
    static constexpr int64_t kMost = 32;
    int64_t count;
    const float* input[kMost];
    int64_t filter[kMost];
};

// One line of outputs for up to kLanes channels; `rows` are those of channel 0.
struct WindowLine {
    const TapRows* rows;
    int64_t channel, channels;
    float* out;
    int64_t pixel, out_step;
    const float *factors, *bias;  // taps are kTileColumns apart
};

template <bool Whole>
SK_INLINE Vector load_channels(const float* from, int64_t channels) {
    return Whole ? load(from) : load_partial(from, channels);
}

template <bool Whole>
SK_INLINE void store_channels(float* to, Vector value, int64_t channels) {
    if (Whole) return store(to, value);
    alignas(64) float some[kLanes];
    store(some, value);
    for (int64_t i = 0; i < channels; ++i) to[i] = some[i];
}

// Adds a row of taps to the sums of a block; `at` is what the first tap of its first output meets.
template <int Filter, int Stride, bool Whole, int Before, int Behind>
SK_INLINE void add_row(const float* at, int64_t pixel, int64_t channels, const float* factors, Vector (&sums)[kBlock]) {
    constexpr int kRead = (kBlock - 1) * Stride + Filter;
    Vector inputs[kRead];
    SK_UNROLL
    for (int i = Before; i < kRead - Behind; ++i) {
        inputs[i] = load_channels<Whole>(at + i * pixel, channels);
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

// The kBlock outputs of a line from `column` on. The first `Before` columns of what they read are outside of the image,
// and the last `Behind`. `Rows`: of taps; 0: as many as there are.
template <int Filter, int Stride, int Rows, bool Whole, int Before, int Behind>
SK_INLINE void compute_block(const WindowLine& part, int64_t column) {
    const int64_t first = part.channel + column * Stride * part.pixel;
    Vector sums[kBlock] = {};
    const auto add = [&](int64_t row) {
        add_row<Filter, Stride, Whole, Before, Behind>(part.rows->input[row] + first, part.pixel, part.channels,
                                                       part.factors + part.rows->filter[row], sums);
    };
    if (Rows > 0) {
        SK_UNROLL
        for (int row = 0; row < Rows; ++row) add(row);
    } else {
        for (int64_t row = 0; row < part.rows->count; ++row) add(row);
    }
    float* out = part.out + column * part.out_step;
    const Vector added = load(part.bias);
    SK_UNROLL
    for (int i = 0; i < kBlock; ++i) store_channels<Whole>(out + i * part.out_step, sums[i] + added, part.channels);
}

// An output for which any column of the filter may be outside.
template <bool Whole>
SK_NOINLINE void compute_border(const Axis& columns, const WindowLine& part, int64_t column) {
    const TapRange taps = taps_inside(columns, column);
    const int64_t first = part.channel + column * columns.stride * part.pixel;
    Vector sum = {};
    for (int64_t row = 0; row < part.rows->count; ++row) {
        const float* at = part.rows->input[row] + first;
        const float* factors = part.factors + part.rows->filter[row];
        for (int64_t x = taps.begin; x < taps.end; ++x)
            sum = multiply_add(load_channels<Whole>(at + x * part.pixel, part.channels),
                               load(factors + x * kTileColumns), sum);
    }
    float* out = part.out + column * part.out_step;
    store_channels<Whole>(out, sum + load(part.bias), part.channels);
}

// Blocks at the ends of a line and of its interior may compute outputs again that the block before them has.
template <int Filter, int Stride, int Rows, bool Whole>
SK_NOINLINE void compute_blocks(const Images& images, const WindowLine& part) {
    constexpr int kHalf = Filter / 2;
    const Axis& columns = images.axes[2];
    const Range inner = images.inner;
    // Columns outside of the image: those of the last output, and whether only the first or last block has any.
    const int64_t behind = (columns.out - 1) * Stride - columns.padding + Filter - columns.input;
    const bool has_first = columns.padding == kHalf && inner.end >= kBlock;
    const bool has_last = behind > 0 && behind <= kHalf && columns.out - kBlock >= inner.begin;
    const int64_t end = has_last ? columns.out - kBlock : columns.out;  // of what is computed before the last block
    int64_t column = 0;
    if (has_first) {
        compute_block<Filter, Stride, Rows, Whole, kHalf, 0>(part, 0);
        column = kBlock;
    } else if (columns.out == kBlock && columns.padding == kHalf && behind == kHalf) {
        return compute_block<Filter, Stride, Rows, Whole, kHalf, kHalf>(part, 0);
    }
    for (; column < inner.begin; ++column) compute_border<Whole>(columns, part, column);
    for (; column + kBlock <= inner.end; column += kBlock)
        compute_block<Filter, Stride, Rows, Whole, 0, 0>(part, column);
    if (column < least(end, inner.end) && inner.end - kBlock >= inner.begin) {
        compute_block<Filter, Stride, Rows, Whole, 0, 0>(part, inner.end - kBlock);
        column = inner.end;
    }
    for (; column < end; ++column) compute_border<Whole>(columns, part, column);
    if (has_last && behind == 1) return compute_block<Filter, Stride, Rows, Whole, 0, 1>(part, end);
    if (has_last) return compute_block<Filter, Stride, Rows, Whole, 0, kHalf>(part, end);
}

template <int Filter, int Stride>
SK_INLINE void compute_part(const Images& images, const WindowLine& part) {
    if (part.channels < kLanes) return compute_blocks<Filter, Stride, 0, false>(images, part);
    constexpr int kUnrolled = Filter == 3 ? 3 : 0;  // rows of taps; more would be much code
    if (part.rows->count == kUnrolled) return compute_blocks<Filter, Stride, kUnrolled, true>(images, part);
    return compute_blocks<Filter, Stride, 0, true>(images, part);
}

template <class T>
SK_INLINE bool fits_blocks(const Images&, const Line<T>&) {
    return false;  // blocks of other types would convert elements one by one
}
SK_INLINE bool fits_blocks(const Images& images, const Line<float>&) {
    const Axis* axes = images.axes;
    return (axes[2].filter == 3 || axes[2].filter == 5) && axes[2].dilation == 1 && axes[2].stride <= 2 &&
           axes[0].filter * axes[1].filter <= TapRows::kMost;
}

template <class T>
SK_INLINE void compute_line_in_blocks(const Images&, const Line<T>&, const PartFilters&) {}
SK_NOINLINE inline void compute_line_in_blocks(const Images& images, const Line<float>& line,
                                               const PartFilters& filters) {
    const Axis* axes = images.axes;
    const int64_t depth = axes[0].dilation * images.of_input.axis[0], row = axes[1].dilation * images.of_input.axis[1];
    TapRows rows;
    rows.count = 0;
    for (int64_t z = line.depths.begin; z < line.depths.end; ++z) {
        for (int64_t y = line.rows.begin; y < line.rows.end; ++y, ++rows.count) {
            rows.input[rows.count] = line.input + z * depth + y * row;
            rows.filter[rows.count] = (z * axes[1].filter + y) * axes[2].filter * kTileColumns;
        }
    }
    for (int64_t c = 0; c < filters.channels; c += kLanes) {
        const WindowLine part = {
            &rows, c, least(kLanes, filters.channels - c), line.out + c, images.of_input.axis[2],
            images.of_out.axis[2], filters.at(c), filters.bias + c};
        if (axes[2].filter == 3)
            axes[2].stride == 1 ? compute_part<3, 1>(images, part) : compute_part<3, 2>(images, part);
        else
            axes[2].stride == 1 ? compute_part<5, 1>(images, part) : compute_part<5, 2>(images, part);
    }
}

}  // namespace
