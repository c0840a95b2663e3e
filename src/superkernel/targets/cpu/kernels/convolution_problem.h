// convolution_problem.h: the description of one convolution call, and which elements of its input an output needs.
//
// A transposed convolution is a convolution per phase: outputs whose coordinates have the same remainder by the stride
// meet the same elements of the filters, and move over the input by one element. Any other convolution has one phase.
#pragma once

#include "problem.h"

namespace {

constexpr int kAxes = 3;  // depth, row, column; a convolution in fewer dimensions has axes of size 1

struct Layout {
    int64_t batch, channel, axis[kAxes];  // strides in elements
};

struct FilterLayout {
    int64_t group, filter, channel, axis[kAxes];
};

struct Axis {
    int64_t input, filter, out, stride, padding, dilation;
};

template <class T>
struct Convolution {
    const T *input, *weight, *bias;  // bias may be null
    T* out;
    int64_t images, groups, channels, filters;  // channels and filters of one group
    Axis axes[kAxes];
    Layout of_input, of_out;
    FilterLayout of_weight;
    int64_t bias_step;
    bool transposed;
};

// Outputs first + i * period, for i < count, need elements i * step + offset + tap * tap_offset of the input, each
// times the element first_tap + tap * tap_step of the filter.
struct PhaseAxis {
    int64_t first, period, count, step, offset, tap_offset, first_tap, tap_step, taps;
};

struct Phase {
    PhaseAxis axes[kAxes];
    int64_t positions, taps;
};

SK_INLINE PhaseAxis phase_axis(const Axis& axis, bool transposed, int64_t remainder) {
    if (!transposed)
        return {0, 1, axis.out, axis.stride, -axis.padding, axis.dilation, 0, 1, axis.filter};
    const int64_t count = axis.out > remainder ? divide_up(axis.out - remainder, axis.stride) : 0;
    int64_t first_tap = 0, tap_step = 1;
    while (first_tap < axis.filter && (remainder + axis.padding - first_tap * axis.dilation) % axis.stride) ++first_tap;
    while (tap_step * axis.dilation % axis.stride) ++tap_step;
    const int64_t taps = first_tap < axis.filter ? (axis.filter - 1 - first_tap) / tap_step + 1 : 0;
    const int64_t offset = (remainder + axis.padding - first_tap * axis.dilation) / axis.stride;
    const int64_t tap_offset = -(tap_step * axis.dilation / axis.stride);
    return {remainder, axis.stride, count, 1, offset, tap_offset, first_tap, tap_step, taps};
}

template <class T>
SK_INLINE int64_t phase_count(const Convolution<T>& p) {
    return p.transposed ? p.axes[0].stride * p.axes[1].stride * p.axes[2].stride : 1;
}

template <class T>
SK_NOINLINE Phase phase_of(const Convolution<T>& p, int64_t number) {
    Phase phase;
    phase.positions = phase.taps = 1;
    for (int axis = kAxes - 1; axis >= 0; --axis) {
        const int64_t phases = p.transposed ? p.axes[axis].stride : 1;
        phase.axes[axis] = phase_axis(p.axes[axis], p.transposed, number % phases);
        number /= phases;
        phase.positions *= phase.axes[axis].count;
        phase.taps *= phase.axes[axis].taps;
    }
    return phase;
}

SK_INLINE bool is_inside(int64_t coordinate, int64_t size) { return uint64_t(coordinate) < uint64_t(size); }

// A position of a phase as a coordinate per axis.
struct Coordinates {
    int64_t at[kAxes];
};

SK_INLINE Coordinates coordinates_of(const Phase& phase, int64_t position) {
    Coordinates found;
    for (int axis = kAxes - 1; axis >= 0; --axis) {
        found.at[axis] = position % phase.axes[axis].count;
        position /= phase.axes[axis].count;
    }
    return found;
}

template <class T>
SK_INLINE int64_t out_offset(const Convolution<T>& p, const Phase& phase, const Coordinates& position) {
    int64_t offset = 0;
    for (int axis = 0; axis < kAxes; ++axis)
        offset += (phase.axes[axis].first + position.at[axis] * phase.axes[axis].period) * p.of_out.axis[axis];
    return offset;
}

}  // namespace

// The parameters of every convolution kernel behind its buffers, and the Convolution that they describe.
#define SK_AXES(of) int64_t of##_0, int64_t of##_1, int64_t of##_2
#define SK_AXIS_OF(i) {input_##i, filter_##i, out_##i, stride_##i, padding_##i, dilation_##i}
#define SK_STRIDES_OF(of) {of##_stride_0, of##_stride_1, of##_stride_2}
#define SK_CONVOLUTION_PARAMETERS                                                                                    \
    int64_t images, int64_t groups, int64_t channels, int64_t filters, SK_AXES(input), SK_AXES(filter), SK_AXES(out), \
        SK_AXES(stride), SK_AXES(padding), SK_AXES(dilation), int64_t input_batch, int64_t input_channel,            \
        SK_AXES(input_stride), int64_t out_batch, int64_t out_channel, SK_AXES(out_stride), int64_t weight_group,    \
        int64_t weight_filter, int64_t weight_channel, SK_AXES(weight_stride)
#define SK_CONVOLUTION_OF(bias, bias_step, transposed)                                                   \
    {                                                                                                    \
        input, weight, bias, out, images, groups, channels, filters,                                     \
            {SK_AXIS_OF(0), SK_AXIS_OF(1), SK_AXIS_OF(2)}, {input_batch, input_channel, SK_STRIDES_OF(input)}, \
            {out_batch, out_channel, SK_STRIDES_OF(out)},                                                \
            {weight_group, weight_filter, weight_channel, SK_STRIDES_OF(weight)}, bias_step, transposed  \
    }
