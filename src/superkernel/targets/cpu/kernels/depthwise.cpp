// depthwise.cpp: convolutions with one input channel per group: every channel has its own filters.
//
// Compiled with SK_DEPTHWISE_FLOAT32, SK_DEPTHWISE_BFLOAT16 or SK_DEPTHWISE_FLOAT16 defined: one object per element
// type. Where channels are neighbours in memory (channels last), vectors run over channels; elsewhere over columns. The
// sum of an output runs over the taps inside of the image, in their order.
#include "depthwise_window.h"

namespace {

constexpr int64_t kChannelPart = 64;  // channels of a unit of work

// Calls add(input, tap) for every tap of a line: the offset of its input, and its number.
template <class Add>
SK_INLINE void for_taps(const Images& images, TapRange depths, TapRange rows, TapRange columns, const Add& add) {
    const Axis* axes = images.axes;
    const int64_t step = axes[2].dilation * images.of_input.axis[2];
    for (int64_t z = depths.begin; z < depths.end; ++z) {
        for (int64_t y = rows.begin; y < rows.end; ++y) {
            int64_t input = z * axes[0].dilation * images.of_input.axis[0] +
                            y * axes[1].dilation * images.of_input.axis[1] + columns.begin * step;
            const int64_t tap = (z * axes[1].filter + y) * axes[2].filter;
            for (int64_t x = columns.begin; x < columns.end; ++x, input += step) add(input, tap + x);
        }
    }
}

// Taps as a list: a loop over it costs less than loops over depths, rows and columns.
struct TapList {
    static constexpr int64_t kMost = 1024;
    int64_t count;
    int64_t input[kMost], filter[kMost];  // offsets
};

SK_INLINE void list_taps(const Images& images, TapRange depths, TapRange rows, TapRange columns, TapList& list) {
    list.count = 0;
    for_taps(images, depths, rows, columns, [&](int64_t offset, int64_t tap) {
        list.input[list.count] = offset;
        list.filter[list.count] = tap * kTileColumns;
        ++list.count;
    });
}

template <class T>
SK_INLINE bool fits_list(const Line<T>& line, TapRange columns) {
    const int64_t rows = (line.depths.end - line.depths.begin) * (line.rows.end - line.rows.begin);
    return rows * (columns.end - columns.begin) <= TapList::kMost;
}

// `Columns` outputs of a line from `column` on. They need the same taps; `list` has them where they fit.
template <int Columns, class T>
SK_NOINLINE void compute_columns(const Images& images, const Line<T>& line, int64_t column, TapRange taps,
                                 const TapList& list, const PartFilters& filters) {
    const int64_t step = images.axes[2].stride * images.of_input.axis[2], out_step = images.of_out.axis[2];
    const T* input = line.input + column * step;
    T* out = line.out + column * out_step;
    int64_t c = 0;
    if (fits_list(line, taps)) {
        for (; c + kLanes <= filters.channels; c += kLanes) {
            Vector sums[Columns] = {};
            const float* factors = filters.at(c);
            for (int64_t tap = 0; tap < list.count; ++tap) {
                Vector factor = load(factors + list.filter[tap]);
                pin_register(factor);
                const T* at = input + list.input[tap] + c;
                SK_UNROLL
                for (int i = 0; i < Columns; ++i) sums[i] = multiply_add(load_floats(at + i * step), factor, sums[i]);
            }
            const Vector added = load(filters.bias + c);
            SK_UNROLL
            for (int i = 0; i < Columns; ++i) store_floats(out + i * out_step + c, sums[i] + added);
        }
    }
    for (; c < filters.channels; ++c) {
        for (int i = 0; i < Columns; ++i) {
            float sum = 0;
            for_taps(images, line.depths, line.rows, taps, [&](int64_t offset, int64_t tap) {
                sum = multiply_add(to_float(input[offset + i * step + c]), filters.at(c)[tap * kTileColumns], sum);
            });
            from_float(sum + filters.bias[c], out[i * out_step + c]);
        }
    }
}

template <class T>
SK_NOINLINE void compute_line(const Images& images, const Line<T>& line, const PartFilters& filters) {
    if (fits_blocks(images, line)) return compute_line_in_blocks(images, line, filters);
    const Axis& columns = images.axes[2];
    const Range inner = images.inner;
    const TapRange all = {0, columns.filter};
    TapList list, border;
    if (fits_list(line, all)) list_taps(images, line.depths, line.rows, all, list);
    for (int64_t column = 0; column < columns.out;) {
        const int64_t together = column >= inner.begin ? least(8, inner.end - column) : 1;
        if (together == 8) {
            compute_columns<8>(images, line, column, all, list, filters);
            column += 8;
        } else if (together >= 4) {
            compute_columns<4>(images, line, column, all, list, filters);
            column += 4;
        } else if (together >= 2) {
            compute_columns<2>(images, line, column, all, list, filters);
            column += 2;
        } else {
            const TapRange taps = taps_inside(columns, column);
            if (fits_list(line, taps)) list_taps(images, line.depths, line.rows, taps, border);
            compute_columns<1>(images, line, column, taps, border, filters);
            ++column;
        }
    }
}

template <class T>
SK_NOINLINE void pack_channels(const Convolution<T>& p, const PartFilters& filters) {
    const Axis* axes = p.axes;
    const int64_t* steps = p.of_weight.axis;
    const T* weight = p.weight + filters.first * p.of_weight.group;
    const bool contiguous = (axes[2].filter == 1 || steps[2] == 1) &&
                            (axes[1].filter == 1 || steps[1] == axes[2].filter) &&
                            (axes[0].filter == 1 || steps[0] == axes[1].filter * axes[2].filter);
    for (int64_t c = 0; c < filters.channels; c += kTileColumns) {
        const int64_t columns = least(kTileColumns, filters.channels - c);
        const T* from = weight + c * p.of_weight.group;
        float* to = filters.panels + c * filters.taps;
        if (contiguous) {
            pack_panel(from, 1, p.of_weight.group, filters.taps, columns, to);
            continue;
        }
        for (int64_t z = 0; z < axes[0].filter; ++z)
            for (int64_t y = 0; y < axes[1].filter; ++y)
                for (int64_t x = 0; x < axes[2].filter; ++x, to += kTileColumns)
                    pack_panel(from + z * steps[0] + y * steps[1] + x * steps[2], 0, p.of_weight.group, 1, columns, to);
    }
    for (int64_t c = 0; c < filters.channels; ++c)
        filters.bias[c] = p.bias ? to_float(p.bias[(filters.first + c) * p.bias_step]) : 0;
}

template <class T>
SK_INLINE Images images_of(const Convolution<T>& p) {
    return {{p.axes[0], p.axes[1], p.axes[2]}, p.of_input, p.of_out, interior(p.axes[2])};
}

// Channels last: a unit of work is a line of outputs for a part of the channels. The filters of a part are packed once.
template <class T>
SK_NOINLINE void convolve_channels_last(const Convolution<T>& p, float* room) {
    const int64_t taps = p.axes[0].filter * p.axes[1].filter * p.axes[2].filter;
    const Images images = images_of(p);
    float* scratch = room + sk::block_idx() * (taps + 1) * kChannelPart;
    PartFilters filters = {scratch, scratch + taps * kChannelPart, taps, -1, 0};
    const int64_t lines = p.axes[0].out * p.axes[1].out, parts = divide_up(p.groups, kChannelPart);
    const Range units = block_share(parts * p.images * lines);
    for (int64_t unit = units.begin, next; unit < units.end; unit = next) {
        const int64_t first = unit / lines / p.images * kChannelPart, image = unit / lines % p.images;
        const int64_t begin = unit % lines;
        next = least(units.end, unit + lines - begin);  // the lines that follow in the same image
        if (first != filters.first) {
            filters.first = first;
            filters.channels = least(kChannelPart, p.groups - first);
            pack_channels(p, filters);
        }
        const T* input = p.input + image * p.of_input.batch + first;
        T* out = p.out + image * p.of_out.batch + first;
        for (int64_t line = begin; line < begin + next - unit; ++line)
            compute_line(images, line_of(images, input, out, line), filters);
    }
}

// The filter of an output channel, tap by tap.
template <class T>
SK_INLINE float tap_of(const Convolution<T>& p, const T* filter, int64_t tap) {
    const int64_t x = tap % p.axes[2].filter, y = tap / p.axes[2].filter % p.axes[1].filter;
    const int64_t z = tap / p.axes[2].filter / p.axes[1].filter;
    return to_float(filter[z * p.of_weight.axis[0] + y * p.of_weight.axis[1] + x * p.of_weight.axis[2]]);
}

// The sum of the output at `column` of a line.
template <class T>
SK_NOINLINE float output_of(const Convolution<T>& p, const Images& images, const Line<T>& line, const T* filter,
                            int64_t column) {
    const T* input = line.input + column * p.axes[2].stride * p.of_input.axis[2];
    float sum = 0;
    for_taps(images, line.depths, line.rows, taps_inside(p.axes[2], column), [&](int64_t offset, int64_t tap) {
        sum = multiply_add(to_float(input[offset]), tap_of(p, filter, tap), sum);
    });
    return sum;
}

// Vectors vectors of neighbouring outputs, for which all columns of the filter are inside.
template <int Vectors, class T>
SK_NOINLINE void compute_vectors(const Convolution<T>& p, const Images& images, const Line<T>& line, const T* filter,
                                 int64_t column, float added) {
    Vector sums[Vectors] = {};
    for_taps(images, line.depths, line.rows, {0, p.axes[2].filter}, [&](int64_t offset, int64_t tap) {
        const Vector factor = broadcast(tap_of(p, filter, tap));
        const T* at = line.input + column + offset;
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) sums[v] = multiply_add(load_floats(at + v * kLanes), factor, sums[v]);
    });
    SK_UNROLL
    for (int v = 0; v < Vectors; ++v) store_floats(line.out + column + v * kLanes, sums[v] + broadcast(added));
}

// Any layout: a unit of work is a line of outputs of one channel. Vectors of neighbouring columns where these are
// neighbours in memory, one output at a time elsewhere.
template <class T>
SK_NOINLINE void convolve_planes(const Convolution<T>& p) {
    const Images images = images_of(p);
    const int64_t lines = p.axes[0].out * p.axes[1].out, filters = p.groups * p.filters;
    const bool dense = p.of_input.axis[2] == 1 && p.of_out.axis[2] == 1 && p.axes[2].stride == 1;
    const Range inner = images.inner, units = block_share(p.images * filters * lines);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t number = unit / lines % filters, group = number / p.filters, image = unit / lines / filters;
        const T* input = p.input + image * p.of_input.batch + group * p.of_input.channel;
        const T* filter = p.weight + group * p.of_weight.group + number % p.filters * p.of_weight.filter;
        T* out = p.out + image * p.of_out.batch + number * p.of_out.channel;
        const Line<T> line = line_of(images, input, out, unit % lines);
        const float added = p.bias ? to_float(p.bias[number * p.bias_step]) : 0;
        for (int64_t column = 0; column < p.axes[2].out;) {
            const int64_t together = dense && column >= inner.begin ? inner.end - column : 0;
            if (together >= 4 * kLanes) {
                compute_vectors<4>(p, images, line, filter, column, added);
                column += 4 * kLanes;
            } else if (together >= kLanes) {
                compute_vectors<1>(p, images, line, filter, column, added);
                column += kLanes;
            } else {
                from_float(output_of(p, images, line, filter, column) + added, line.out[column * p.of_out.axis[2]]);
                ++column;
            }
        }
    }
}

template <class T>
SK_INLINE void convolve_depthwise(const Convolution<T>& p, float* room) {
    const bool channels_last = p.filters == 1 && p.of_input.channel == 1 && p.of_out.channel == 1;
    return channels_last ? convolve_channels_last(p, room) : convolve_planes(p);
}

}  // namespace

#define SK_DEPTHWISE(name, T)                                                                                    \
    extern "C" void name(const T* input, const T* weight, T* out, float* room, SK_CONVOLUTION_PARAMETERS) {      \
        convolve_depthwise<T>(SK_CONVOLUTION_OF(nullptr, 0, false), room);                                       \
    }                                                                                                            \
    extern "C" void name##_bias(const T* input, const T* weight, T* out, float* room, SK_CONVOLUTION_PARAMETERS, \
                                const T* bias, int64_t bias_step) {                                              \
        convolve_depthwise<T>(SK_CONVOLUTION_OF(bias, bias_step, false), room);                                  \
    }

#ifdef SK_DEPTHWISE_FLOAT32
SK_DEPTHWISE(depthwise_float32, float)
#endif
#ifdef SK_DEPTHWISE_BFLOAT16
SK_DEPTHWISE(depthwise_bfloat16, Bfloat16)
#endif
#ifdef SK_DEPTHWISE_FLOAT16
SK_DEPTHWISE(depthwise_float16, Float16)
#endif
