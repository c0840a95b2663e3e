// depthwise_lines.h: what a line of outputs of a depthwise convolution reads: taps inside of the image, and filters.
#pragma once

#include "convolution_problem.h"
#include "tiles.h"

namespace {

// Taps [begin, end) along an axis lie inside of the image.
struct TapRange {
    int64_t begin, end;
};

SK_INLINE TapRange taps_inside(const Axis& axis, int64_t position) {
    const int64_t first = position * axis.stride - axis.padding;
    const int64_t last = first + (axis.filter - 1) * axis.dilation;
    if (first >= 0 && last < axis.input) return {0, axis.filter};  // most are inside, and a division takes its time
    const int64_t begin = first >= 0 ? 0 : divide_up(-first, axis.dilation);
    const int64_t end = first >= axis.input ? 0 : divide_up(axis.input - first, axis.dilation);
    return {least(begin, axis.filter), least(end, axis.filter)};
}

// The outputs along an axis for which all taps are inside: [begin, end).
SK_INLINE Range interior(const Axis& axis) {
    const int64_t begin = divide_up(axis.padding, axis.stride);
    const int64_t last = axis.input - 1 + axis.padding - (axis.filter - 1) * axis.dilation;
    const int64_t end = last < 0 ? 0 : last / axis.stride + 1;
    return {least(begin, axis.out), least(end, axis.out)};
}

// Sizes and strides of the images, and the columns for which all taps are inside.
struct Images {
    Axis axes[kAxes];
    Layout of_input, of_out;
    Range inner;
};

// One line of outputs of one image: its taps along depth and rows, and the element of the input that the first tap
// meets for column 0 and channel 0.
template <class T>
struct Line {
    TapRange depths, rows;
    const T* input;
    T* out;
};

template <class T>
SK_INLINE Line<T> line_of(const Images& images, const T* input, T* out, int64_t number) {
    const Axis* axes = images.axes;
    const int64_t depth = axes[0].out == 1 ? 0 : number / axes[1].out, row = number - depth * axes[1].out;
    input += (depth * axes[0].stride - axes[0].padding) * images.of_input.axis[0] +
             (row * axes[1].stride - axes[1].padding) * images.of_input.axis[1] -
             axes[2].padding * images.of_input.axis[2];
    out += depth * images.of_out.axis[0] + row * images.of_out.axis[1];
    return {taps_inside(axes[0], depth), taps_inside(axes[1], row), input, out};
}

template <class T>
SK_INLINE void store_floats(T* to, Vector value) {
    SK_UNROLL
    for (int i = 0; i < kLanes; ++i) from_float(value[i], to[i]);
}
template <>
SK_INLINE void store_floats(float* to, Vector value) {
    store(to, value);
}

// The filters and the bias of a part of the channels: panels of kTileColumns channels; in each, tap after tap.
struct PartFilters {
    float *panels, *bias;
    int64_t taps, first, channels;

    SK_INLINE const float* at(int64_t channel) const {
        return panels + channel / kTileColumns * taps * kTileColumns + channel % kTileColumns;
    }
};

}  // namespace
