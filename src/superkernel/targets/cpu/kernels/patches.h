// patches.h: patches of a convolution's input as rows of a matrix of floats, with zeros outside of the image.
//
// The elements of a patch are numbered as the filters are packed: channels inner (all channels of a tap are
// neighbours), or taps inner, the order in which torch keeps filters.
#pragma once

#include "convolution_problem.h"
#include "tiles.h"

namespace {

constexpr int64_t kPatchChunk = 256;  // elements of patches that are gathered and multiplied together

enum class ElementOrder { kChannelsInner, kTapsInner };

// Elements of patches that lie at the same place of the input relative to every position.
struct PatchRun {
    int64_t origin[kAxes];  // coordinates for the position 0
    int64_t begin, size;    // channels; where columns are merged, elements of a line of the filter
    int64_t to, to_step;    // in the row of the matrix
};

template <class T>
SK_INLINE void copy_floats(const T* from, int64_t step, int64_t count, float* to, int64_t to_step) {
    if (step == 1 && to_step == 1) {
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) store(to + i, load_floats(from + i));
        if (i == count) return;
        if (count >= kLanes)  // the last vector overlaps the one before it
            store(to + count - kLanes, load_floats(from + count - kLanes));
        else
            for (; i < count; ++i) to[i] = to_float(from[i]);
    } else {
        for (int64_t i = 0; i < count; ++i) to[i * to_step] = to_float(from[i * step]);
    }
}

SK_INLINE void fill_zeros(float* to, int64_t step, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i * step] = 0;
}

SK_INLINE int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

// Whether the elements of a line of the filter (columns, then channels) are neighbours in the input as well.
template <class T>
SK_INLINE bool merges_columns(const Convolution<T>& p, const Phase& phase, ElementOrder order) {
    return order == ElementOrder::kChannelsInner && p.of_input.channel == 1 && p.of_input.axis[2] == p.channels &&
           phase.axes[2].tap_offset == 1;
}

// The run of one patch that may be outside of the image; x is the column of the run's first element.
template <class T, bool Merged>
SK_INLINE void gather_border(const Convolution<T>& p, const T* line, int64_t x, const PatchRun& run, float* to) {
    const int64_t width = p.axes[2].input, pixel = p.of_input.axis[2], end = run.begin + run.size;
    if (Merged) {
        const int64_t low = clamp(-x * pixel, run.begin, end), high = clamp((width - x) * pixel, low, end);
        fill_zeros(to, 1, low - run.begin);
        copy_floats(line + x * pixel + low, 1, high - low, to + low - run.begin, 1);
        fill_zeros(to + high - run.begin, 1, end - high);
    } else if (is_inside(x, width)) {
        copy_floats(line + x * pixel + run.begin * p.of_input.channel, p.of_input.channel, run.size, to, run.to_step);
    } else {
        fill_zeros(to, run.to_step, run.size);
    }
}

// Copies a run that is shorter than a vector and writes a whole one: what is behind it is written later, or not read.
SK_INLINE void copy_short_run(const float* from, int64_t size, float* to) { store(to, load_partial(from, size)); }
template <class T>
SK_INLINE void copy_short_run(const T* from, int64_t size, float* to) {
    copy_floats(from, 1, size, to, 1);
}
// Whether it may: runs are copied in the order of their places, and there is room in the row. Only masked loads are fast.
SK_INLINE bool is_short_run(const PatchRun& run) {
    return kLanes == 16 && run.size < kLanes && run.to + kLanes <= kPatchChunk;
}

// Copies one run of each patch; `image` is the first channel of the group. Rows are kPatchChunk apart.
template <class T, bool Merged>
SK_NOINLINE void gather_run(const Convolution<T>& p, const Phase& phase, const T* image, int64_t first, int64_t count,
                            const PatchRun& run, float* to) {
    const PhaseAxis& columns = phase.axes[2];
    const int64_t pixel = p.of_input.axis[2], channel = p.of_input.channel, step = columns.step;
    const int64_t reach = Merged ? columns.taps : 1;  // columns of the image that a run covers
    // Positions [inner, inner_end) of a line have their whole run inside.
    const int64_t inner = run.origin[2] >= 0 ? 0 : divide_up(-run.origin[2], step);
    const int64_t last = p.axes[2].input - reach - run.origin[2], inner_end = last < 0 ? 0 : last / step + 1;
    Coordinates at = coordinates_of(phase, first);
    to += run.to;
    while (count > 0) {
        const int64_t begin = at.at[2], span = least(count, columns.count - begin), end = begin + span;
        const int64_t z = at.at[0] * phase.axes[0].step + run.origin[0];
        const int64_t y = at.at[1] * phase.axes[1].step + run.origin[1];
        const T* line = image + z * p.of_input.axis[0] + y * p.of_input.axis[1];
        if (!is_inside(z, p.axes[0].input) || !is_inside(y, p.axes[1].input)) {
            for (int64_t i = 0; i < span; ++i, to += kPatchChunk) fill_zeros(to, run.to_step, run.size);
        } else {
            const int64_t low = clamp(inner, begin, end), high = clamp(inner_end, low, end);
            int64_t i = begin;
            for (; i < low; ++i, to += kPatchChunk)
                gather_border<T, Merged>(p, line, i * step + run.origin[2], run, to);
            const T* from = line + (i * step + run.origin[2]) * pixel + run.begin * channel;
            if (channel == 1 && run.to_step == 1 && is_short_run(run))
                for (; i < high; ++i, to += kPatchChunk, from += step * pixel) copy_short_run(from, run.size, to);
            else if (channel == 1 && run.to_step == 1)
                for (; i < high; ++i, to += kPatchChunk, from += step * pixel) copy_floats(from, 1, run.size, to, 1);
            else
                for (; i < high; ++i, to += kPatchChunk, from += step * pixel)
                    copy_floats(from, channel, run.size, to, run.to_step);
            for (; i < end; ++i, to += kPatchChunk)
                gather_border<T, Merged>(p, line, i * step + run.origin[2], run, to);
        }
        count -= span;
        at.at[2] = 0;
        if (++at.at[1] == phase.axes[1].count) {
            at.at[1] = 0;
            ++at.at[0];
        }
    }
}

// The place of a tap: which element of the filter it is along each axis.
SK_INLINE Coordinates tap_coordinates(const Phase& phase, int64_t tap) {
    Coordinates found;
    for (int axis = kAxes - 1; axis >= 0; --axis) {
        found.at[axis] = tap % phase.axes[axis].taps;
        tap /= phase.axes[axis].taps;
    }
    return found;
}

SK_INLINE void set_origin(const Phase& phase, int64_t tap, PatchRun& run) {
    const Coordinates taps = tap_coordinates(phase, tap);
    for (int axis = 0; axis < kAxes; ++axis)
        run.origin[axis] = phase.axes[axis].offset + taps.at[axis] * phase.axes[axis].tap_offset;
}

// The elements k ... k + depth of the patches of `count` positions, as floats.
template <class T>
SK_NOINLINE void gather_patches(const Convolution<T>& p, const Phase& phase, const T* image, ElementOrder order,
                                int64_t first, int64_t count, int64_t k, int64_t depth, float* to) {
    PatchRun run;
    if (order == ElementOrder::kTapsInner) {
        for (int64_t tap = 0; tap < phase.taps; ++tap) {
            run.begin = k > tap ? divide_up(k - tap, phase.taps) : 0;
            run.size = divide_up(k + depth - tap, phase.taps) - run.begin;
            if (k + depth <= tap || run.size <= 0) continue;
            set_origin(phase, tap, run);
            run.to = run.begin * phase.taps + tap - k;
            run.to_step = phase.taps;
            gather_run<T, false>(p, phase, image, first, count, run, to);
        }
        return;
    }
    const bool merged = merges_columns(p, phase, order);
    const int64_t length = merged ? phase.axes[2].taps * p.channels : p.channels;
    run.to_step = 1;
    for (int64_t done = 0; done < depth; done += run.size) {
        const int64_t number = (k + done) / length;
        run.begin = (k + done) % length;
        run.size = least(length - run.begin, depth - done);
        run.to = done;
        set_origin(phase, merged ? number * phase.axes[2].taps : number, run);
        if (merged)
            gather_run<T, true>(p, phase, image, first, count, run, to);
        else
            gather_run<T, false>(p, phase, image, first, count, run, to);
    }
}

// The elements k ... k + depth of `columns` <= kTileColumns filters as a panel; `weight` is the first of them.
template <class T>
SK_NOINLINE void pack_filters(const Convolution<T>& p, const Phase& phase, const T* weight, ElementOrder order,
                              int64_t k, int64_t depth, int64_t columns, float* to) {
    if (order == ElementOrder::kTapsInner) return pack_panel(weight + k, 1, p.of_weight.filter, depth, columns, to);
    for (int64_t done = 0; done < depth;) {
        const int64_t tap = (k + done) / p.channels, channel = (k + done) % p.channels;
        const int64_t size = least(p.channels - channel, depth - done);
        const Coordinates taps = tap_coordinates(phase, tap);
        const T* from = weight + channel * p.of_weight.channel;
        for (int axis = 0; axis < kAxes; ++axis) {
            const PhaseAxis& along = phase.axes[axis];
            from += (along.first_tap + taps.at[axis] * along.tap_step) * p.of_weight.axis[axis];
        }
        pack_panel(from, p.of_weight.channel, p.of_weight.filter, size, columns, to + done * kTileColumns);
        done += size;
    }
}

}  // namespace
