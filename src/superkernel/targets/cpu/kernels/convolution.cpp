// convolution.cpp: convolutions in one to three dimensions, also transposed: patches of the input times the filters.
//
// Compiled with SK_CONVOLUTION_FLOAT32, SK_CONVOLUTION_BFLOAT16 or SK_CONVOLUTION_FLOAT16 defined: one object per
// element type. The matrix of patches never exists as a whole: a unit of work gathers some rows of a chunk of it, packs
// the filters of that chunk, and multiplies them in register tiles (implicit GEMM). The sum of an output is taken in an
// order that depends on the shapes only.
#include "padded_lines.h"

namespace {

constexpr int64_t kGatheredRows = 16 * kTileRows;  // rows of patches that are multiplied before the next are gathered

// Scratch memory of a block: the sums of a unit, its packed filters, and gathered rows.
struct UnitScratch {
    float *sums, *filters, *rows;
    int64_t ld;  // of the sums
};

// Units of work: up to `most_positions` outputs of one image, group and phase, for up to `most_filters` filters.
struct UnitSize {
    int64_t most_positions, most_filters;
};

struct Unit {
    int64_t image, group, first, positions, first_filter, filters;
};

SK_INLINE int64_t scratch_floats(const UnitSize& size) {
    const int64_t columns = round_up(size.most_filters, kTileColumns);
    return round_up(size.most_positions, kTileRows) * columns + (columns + kGatheredRows) * kPatchChunk;
}

SK_INLINE UnitScratch unit_scratch(const UnitSize& size, float* room) {
    const int64_t columns = round_up(size.most_filters, kTileColumns);
    float* filters = room + round_up(size.most_positions, kTileRows) * columns;
    return {room, filters, filters + columns * kPatchChunk, columns};
}

SK_INLINE bool evenly_spaced(const Layout& of, int64_t depths, int64_t rows, int64_t columns) {
    return (rows == 1 || of.axis[1] == columns * of.axis[2]) &&
           (depths == 1 || of.axis[0] == rows * columns * of.axis[2]);
}

// The sums of some positions, `ld` apart, to planes in which these are neighbours, in blocks of kLanes x kLanes.
template <class T>
SK_NOINLINE void store_planes(const Convolution<T>& p, const Unit& unit, const float* sums, int64_t ld, int64_t positions,
                              const T* bias, T* out) {
    for (int64_t f = 0; f < unit.filters; ++f) {
        const float added = bias ? to_float(bias[f * p.bias_step]) : 0;
        T* __restrict plane = out + f * p.of_out.channel;
        for (int64_t i = 0; i < positions; ++i) from_float(bias ? sums[i * ld + f] + added : sums[i * ld + f], plane[i]);
    }
}
SK_NOINLINE void store_planes(const Convolution<float>& p, const Unit& unit, const float* sums, int64_t ld,
                              int64_t positions, const float* bias, float* out) {
    const int64_t whole = positions / kLanes * kLanes, filters = unit.filters / kLanes * kLanes;
    for (int64_t f = 0; f < filters; f += kLanes) {
        for (int64_t i = 0; i < whole; i += kLanes) {
            Vector block[kLanes];
            SK_UNROLL
            for (int r = 0; r < kLanes; ++r) block[r] = load(sums + (i + r) * ld + f);
            transpose(block);
            SK_UNROLL
            for (int r = 0; r < kLanes; ++r)
                store(out + (f + r) * p.of_out.channel + i, bias ? block[r] + bias[(f + r) * p.bias_step] : block[r]);
        }
    }
    const auto store_rest = [&](int64_t filter, int64_t end, int64_t first) {
        Unit rest = unit;
        rest.filters = end - filter;
        store_planes<float>(p, rest, sums + first * ld + filter, ld, positions - first,
                            bias ? bias + filter * p.bias_step : nullptr, out + filter * p.of_out.channel + first);
    };
    store_rest(0, filters, whole);
    store_rest(filters, unit.filters, 0);
}

// Adds the bias to the sums, rounds them once and stores them.
template <class T>
SK_NOINLINE void store_unit(const Convolution<T>& p, const Phase& phase, const Unit& unit, const UnitScratch& scratch) {
    const int64_t filter = unit.group * p.filters + unit.first_filter;
    T* out = p.out + unit.image * p.of_out.batch + filter * p.of_out.channel;
    const T* bias = p.bias ? p.bias + filter * p.bias_step : nullptr;
    Coordinates at = coordinates_of(phase, unit.first);
    const float* sums = scratch.sums;
    const bool dense = phase.axes[2].period * p.of_out.axis[2] == 1 && !p.transposed && p.of_out.channel != 1 &&
                       evenly_spaced(p.of_out, p.axes[0].out, p.axes[1].out, p.axes[2].out);
    if (dense) return store_planes(p, unit, sums, scratch.ld, unit.positions, bias, out + out_offset(p, phase, at));
    if (p.of_out.channel == 1 && bias) {  // in the rows that the filters have packed
        for (int64_t f = 0; f < unit.filters; ++f) scratch.filters[f] = to_float(bias[f * p.bias_step]);
    }
    for (int64_t done = 0; done < unit.positions;) {
        const int64_t span = least(unit.positions - done, phase.axes[2].count - at.at[2]);
        T* __restrict to = out + out_offset(p, phase, at);
        const int64_t step = phase.axes[2].period * p.of_out.axis[2];
        if (p.of_out.channel == 1) {
            for (int64_t i = 0; i < span; ++i, sums += scratch.ld, to += step) {
                if (bias)
                    for (int64_t f = 0; f < unit.filters; ++f) from_float(sums[f] + scratch.filters[f], to[f]);
                else
                    for (int64_t f = 0; f < unit.filters; ++f) from_float(sums[f], to[f]);
            }
        } else {
            for (int64_t f = 0; f < unit.filters; ++f) {
                const float added = bias ? to_float(bias[f * p.bias_step]) : 0;
                T* __restrict plane = to + f * p.of_out.channel;
                for (int64_t i = 0; i < span; ++i) {
                    const float sum = sums[i * scratch.ld + f];
                    from_float(bias ? sum + added : sum, plane[i * step]);
                }
            }
            sums += span * scratch.ld;
        }
        done += span;
        at.at[2] = 0;
        if (++at.at[1] == phase.axes[1].count) {
            at.at[1] = 0;
            ++at.at[0];
        }
    }
}

// Where a unit reads patches from and writes sums to, if it can do without scratch memory: null where it cannot.
struct InPlace {
    const float* input;
    float* out;
    int64_t input_step, out_step;  // between positions
};

template <class T>
SK_INLINE InPlace in_place(const Convolution<T>&, const Phase&, const Unit&) {
    return {nullptr, nullptr, 0, 0};
}

// Patches of one element per channel are rows of the input; filters that fill vectors are rows of the output.
template <>
SK_INLINE InPlace in_place(const Convolution<float>& p, const Phase& phase, const Unit& unit) {
    InPlace found = {nullptr, nullptr, p.of_input.axis[2], p.of_out.axis[2]};
    const Axis* axes = p.axes;
    bool same = phase.taps == 1 && p.of_input.channel == 1;
    for (int axis = 0; axis < kAxes; ++axis)
        same = same && axes[axis].input == axes[axis].out && axes[axis].stride == 1 && axes[axis].padding == 0;
    if (same && evenly_spaced(p.of_input, axes[0].input, axes[1].input, axes[2].input))
        found.input = p.input + unit.image * p.of_input.batch + unit.group * p.channels + unit.first * found.input_step;
    const bool whole = p.of_out.channel == 1 && unit.filters % kLanes == 0 && !p.transposed;
    if (whole && evenly_spaced(p.of_out, axes[0].out, axes[1].out, axes[2].out))
        found.out = p.out + unit.image * p.of_out.batch + unit.group * p.filters + unit.first_filter +
                    unit.first * found.out_step;
    return found;
}

// Adds the bias to sums in the output.
template <class T>
SK_NOINLINE void add_bias(const Convolution<T>& p, const Unit& unit, const InPlace& place, int64_t rows, float* bias) {
    const T* from = p.bias + (unit.group * p.filters + unit.first_filter) * p.bias_step;
    for (int64_t f = 0; f < unit.filters; ++f) bias[f] = to_float(from[f * p.bias_step]);
    for (int64_t i = 0; i < rows; ++i) {
        float* out = place.out + i * place.out_step;
        for (int64_t f = 0; f < unit.filters; f += kLanes) store(out + f, load(out + f) + load(bias + f));
    }
}

// All positions of a unit, from padded lines; the filters are packed. `whole` positions go to the output where it can.
template <class T>
SK_NOINLINE void multiply_lines(const Convolution<T>& p, const T* image, ElementOrder order, const Unit& unit,
                                const UnitScratch& scratch, const InPlace& place, int64_t whole, int64_t most_lines) {
    const Axis &rows = p.axes[1], &columns = p.axes[2];
    const int64_t depth = rows.filter * columns.filter * p.channels, end = unit.first + unit.positions;
    const int64_t line_step = rows.stride * padded_width(columns, p.channels), step = columns.stride * p.channels;
    int64_t offsets[kPatchChunk];
    patch_offsets(p, order, padded_width(columns, p.channels), offsets);
    for (int64_t first = unit.first; first < end;) {
        const int64_t line = first / columns.out;
        // Units are computed in whole register tiles, also where they are divided.
        const int64_t fitting = (line + most_lines) * columns.out - first;
        const int64_t count = fitting < end - first ? fitting / kTileRows * kTileRows : end - first;
        const int64_t last_line = (first + count - 1) / columns.out;
        const PaddedLines lines = pad_lines(p, image, line, last_line + 1, scratch.rows);
        int64_t y = 0, x = first - line * columns.out;
        for (int64_t i = first - unit.first; i < first - unit.first + count; i += kTileRows) {
            const float* patches[kTileRows];
            for (int r = 0; r < kTileRows; ++r) {
                patches[r] = lines.at + y * line_step + x * step;
                if (i + r + 1 < unit.positions && ++x == columns.out) x = 0, ++y;
            }
            float* sums = place.out && i < whole ? place.out + i * place.out_step
                                                 : scratch.sums + (place.out ? 0 : i) * scratch.ld;
            const int64_t ld = place.out && i < whole ? place.out_step : scratch.ld;
            for (int64_t j = 0; j < unit.filters; j += kTileColumns)
                patch_tile_of(divide_up(least(kTileColumns, unit.filters - j), kLanes), patches, offsets,
                              scratch.filters + j * kPatchChunk, depth, sums + j, ld);
        }
        first += count;
    }
}

template <class T>
SK_NOINLINE void compute_unit(const Convolution<T>& p, const Phase& phase, ElementOrder order, const Unit& unit,
                              const UnitScratch& scratch) {
    const T* image = p.input + unit.image * p.of_input.batch + unit.group * p.channels * p.of_input.channel;
    const T* weight = p.weight + unit.group * p.of_weight.group + unit.first_filter * p.of_weight.filter;
    const int64_t all = phase.taps * p.channels;
    const InPlace place = all ? in_place(p, phase, unit) : InPlace{nullptr, nullptr, 0, 0};
    const int64_t whole = unit.positions / kTileRows * kTileRows;  // only rows that fill register tiles are in place
    if (all == 0)
        for (int64_t i = 0; i < unit.positions; ++i) fill_zeros(scratch.sums + i * scratch.ld, 1, unit.filters);
    const int64_t chunks = divide_up(all, kPatchChunk), room = kGatheredRows * kPatchChunk;
    const int64_t most_lines = reads_lines(p, phase) ? fitting_lines(p.axes[1], p.axes[2], p.channels, room) : 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t k = all * chunk / chunks, depth = all * (chunk + 1) / chunks - k;
        for (int64_t j = 0; j < unit.filters; j += kTileColumns) {
            const int64_t columns = least(kTileColumns, unit.filters - j);
            pack_filters(p, phase, weight + j * p.of_weight.filter, order, k, depth, columns,
                         scratch.filters + j * kPatchChunk);
        }
        if (most_lines > 0) {
            multiply_lines(p, image, order, unit, scratch, place, whole, most_lines);
            break;
        }
        for (int64_t i = 0; i < unit.positions; i += kGatheredRows) {
            const int64_t rows = least(kGatheredRows, unit.positions - i);
            const int64_t ready = place.input ? least(rows, whole - i) : 0;
            gather_patches(p, phase, image, order, unit.first + i + ready, rows - ready, k, depth,
                           scratch.rows + ready * kPatchChunk);
            for (int64_t j = 0; j < unit.filters; j += kTileColumns) {
                const int64_t vectors = divide_up(least(kTileColumns, unit.filters - j), kLanes);
                const float* panel = scratch.filters + j * kPatchChunk;
                for (int64_t r = 0; r < rows; r += kTileRows) {
                    const bool is_whole = i + r < whole;
                    const float* a = scratch.rows + r * kPatchChunk;
                    if (r < ready) a = place.input + (i + r) * place.input_step + k;
                    const int64_t lda = r < ready ? place.input_step : kPatchChunk;
                    if (place.out && is_whole)
                        register_tile_of(vectors, a, lda, panel, depth, place.out + (i + r) * place.out_step + j,
                                         place.out_step, chunk == 0);
                    else
                        register_tile_of(vectors, a, lda, panel, depth,
                                         scratch.sums + (place.out ? 0 : i + r) * scratch.ld + j, scratch.ld,
                                         chunk == 0);
                }
            }
        }
    }
    if (!place.out) return store_unit(p, phase, unit, scratch);
    if (p.bias) add_bias(p, unit, place, whole, scratch.filters);
    Unit rest = unit;
    rest.first += whole;
    rest.positions -= whole;
    if (rest.positions > 0) store_unit(p, phase, rest, scratch);
}

// This block's share of the units. Positions and filters are divided into equal parts.
template <class T>
SK_NOINLINE void convolve(const Convolution<T>& p, ElementOrder order, UnitSize size, float* room) {
    const UnitScratch scratch = unit_scratch(size, room + sk::block_idx() * scratch_floats(size));
    const int64_t phases = phase_count(p), most_positions = phase_of(p, 0).positions;
    if (most_positions == 0 || p.filters == 0) return;
    const int64_t position_parts = divide_up(most_positions, size.most_positions);
    const int64_t filter_parts = divide_up(p.filters, size.most_filters);
    const Range units = block_share(p.images * p.groups * phases * filter_parts * position_parts);
    for (int64_t number = units.begin; number < units.end; ++number) {
        int64_t rest = number;
        const int64_t position_part = rest % position_parts;
        const int64_t filter_part = (rest /= position_parts) % filter_parts;
        const Phase phase = phase_of(p, (rest /= filter_parts) % phases);
        Unit unit;
        unit.group = (rest /= phases) % p.groups;
        unit.image = rest / p.groups;
        unit.first = phase.positions * position_part / position_parts;
        unit.positions = phase.positions * (position_part + 1) / position_parts - unit.first;
        unit.first_filter = filter_part * size.most_filters;
        unit.filters = least(size.most_filters, p.filters - unit.first_filter);
        if (unit.positions > 0) compute_unit(p, phase, order, unit, scratch);
    }
}

}  // namespace

#define SK_TILING int64_t transposed, int64_t taps_inner, int64_t most_positions, int64_t most_filters
#define SK_CONVOLUTION(name, T)                                                                                  \
    extern "C" void name(const T* input, const T* weight, T* out, float* room, SK_CONVOLUTION_PARAMETERS,        \
                         SK_TILING) {                                                                            \
        convolve<T>(SK_CONVOLUTION_OF(nullptr, 0, transposed != 0), ElementOrder(taps_inner),                    \
                    {most_positions, most_filters}, room);                                                       \
    }                                                                                                            \
    extern "C" void name##_bias(const T* input, const T* weight, T* out, float* room, SK_CONVOLUTION_PARAMETERS, \
                                SK_TILING, const T* bias, int64_t bias_step) {                                   \
        convolve<T>(SK_CONVOLUTION_OF(bias, bias_step, transposed != 0), ElementOrder(taps_inner),               \
                    {most_positions, most_filters}, room);                                                       \
    }

#ifdef SK_CONVOLUTION_FLOAT32
SK_CONVOLUTION(convolution_float32, float)
#endif
#ifdef SK_CONVOLUTION_BFLOAT16
SK_CONVOLUTION(convolution_bfloat16, Bfloat16)
#endif
#ifdef SK_CONVOLUTION_FLOAT16
SK_CONVOLUTION(convolution_float16, Float16)
#endif
