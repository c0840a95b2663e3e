// winograd.cpp: convolutions by filters of 3 x 3 with stride 1, as Winograd's F(2 x 2, 3 x 3).
//
// Tiles of 4 x 4 inputs and filters are transformed to 16 points each; at each point the tiles times the filters are a
// matmul, and the products transformed back are 2 x 2 outputs: 16 multiplications per channel instead of 36. The
// transforms add and halve, so that results are about as exact as direct sums. Channels are neighbours in memory.
#include "convolution_problem.h"
#include "tiles.h"

namespace {

constexpr int kPoints = 16;
constexpr int kTileSize = 4;                        // inputs of a tile along an axis; its outputs are half as many
constexpr int64_t kDepth = 256;                     // channels multiplied at a time: a panel fits the L1 cache
constexpr int64_t kPackedChannels = 16;             // of filters that are transformed together
constexpr int64_t kUnitFilters = 4 * kTileColumns;  // filters whose products are kept at a time

// The transformed filters: for each point, panels of kTileColumns filters; in each, channel after channel.
SK_INLINE int64_t panel_offset(int64_t channels, int64_t panels, int64_t point, int64_t panel) {
    return (point * panels + panel) * channels * kTileColumns;
}

// (1, 0, 0), (1, 1, 1) / 2, (1, -1, 1) / 2, (0, 0, 1)
SK_INLINE void transform_filter(Vector x, Vector y, Vector z, Vector (&to)[kTileSize]) {
    const Vector half = broadcast(0.5f), outer = x + z;
    to[0] = x;
    to[1] = (outer + y) * half;
    to[2] = (outer - y) * half;
    to[3] = z;
}

// A vector of filters at one channel: its nine taps, `step` apart, to 16 points, `point_step` apart.
SK_INLINE void transform_filters(const float* taps, int64_t step, float* to, int64_t point_step) {
    Vector columns[3][kTileSize];
    SK_UNROLL
    for (int x = 0; x < 3; ++x)
        transform_filter(load(taps + x * step), load(taps + (3 + x) * step), load(taps + (6 + x) * step), columns[x]);
    SK_UNROLL
    for (int y = 0; y < kTileSize; ++y) {
        Vector row[kTileSize];
        transform_filter(columns[0][y], columns[1][y], columns[2][y], row);
        SK_UNROLL
        for (int x = 0; x < kTileSize; ++x) store(to + (y * kTileSize + x) * point_step, row[x]);
    }
}

// A unit of work is a panel of filters at kPackedChannels channels.
SK_NOINLINE void transform_all_filters(const float* weight, float* to, int64_t channels, int64_t filters,
                                       const FilterLayout& of_weight) {
    alignas(64) float packed[9 * kPackedChannels * kTileColumns];
    const int64_t panels = divide_up(filters, kTileColumns), parts = divide_up(channels, kPackedChannels);
    const bool taps_inner = of_weight.channel == 9 && of_weight.axis[1] == 3 && of_weight.axis[2] == 1;
    const Range units = block_share(panels * parts);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t panel = unit / parts, first = unit % parts * kPackedChannels;
        const int64_t size = least(kPackedChannels, channels - first);
        const int64_t columns = least(kTileColumns, filters - panel * kTileColumns);
        const float* from = weight + panel * kTileColumns * of_weight.filter + first * of_weight.channel;
        if (taps_inner) {
            pack_panel(from, 1, of_weight.filter, 9 * size, columns, packed);
        } else {
            for (int tap = 0; tap < 9; ++tap)
                pack_panel(from + tap / 3 * of_weight.axis[1] + tap % 3 * of_weight.axis[2], of_weight.channel,
                           of_weight.filter, size, columns, packed + tap * size * kTileColumns);
        }
        const int64_t tap_step = taps_inner ? kTileColumns : size * kTileColumns;
        const int64_t channel_step = taps_inner ? 9 * kTileColumns : kTileColumns;
        const int64_t point_step = panel_offset(channels, panels, 1, 0);
        float* points = to + panel_offset(channels, panels, 0, panel) + first * kTileColumns;
        for (int64_t c = 0; c < size; ++c)
            for (int64_t j = 0; j < kTileColumns; j += kLanes)
                transform_filters(packed + c * channel_step + j, tap_step, points + c * kTileColumns + j, point_step);
    }
}

// (1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)
SK_INLINE void transform_input(const Vector (&from)[kTileSize], Vector (&to)[kTileSize]) {
    to[0] = from[0] - from[2];
    to[1] = from[1] + from[2];
    to[2] = from[2] - from[1];
    to[3] = from[1] - from[3];
}

// (1, 1, 1, 0), (0, 1, -1, -1)
SK_INLINE void transform_output(Vector w, Vector x, Vector y, Vector z, Vector& first, Vector& second) {
    first = w + x + y;
    second = x - y - z;
}

// All channels of one tile to 16 points, `point_step` apart. Channels fill vectors.
SK_NOINLINE void transform_tile(const Convolution<float>& p, const float* image, int64_t top, int64_t left, float* to,
                                int64_t point_step) {
    const float* corners[kTileSize][kTileSize];  // null outside of the image
    for (int y = 0; y < kTileSize; ++y)
        for (int x = 0; x < kTileSize; ++x) {
            const bool inside = is_inside(top + y, p.axes[1].input) && is_inside(left + x, p.axes[2].input);
            corners[y][x] = inside ? image + (top + y) * p.of_input.axis[1] + (left + x) * p.of_input.axis[2] : nullptr;
        }
    for (int64_t c = 0; c < p.channels; c += kLanes) {
        Vector rows[kTileSize][kTileSize];  // [x][y]
        SK_UNROLL
        for (int x = 0; x < kTileSize; ++x) {
            Vector column[kTileSize];
            SK_UNROLL
            for (int y = 0; y < kTileSize; ++y) column[y] = corners[y][x] ? load(corners[y][x] + c) : Vector{};
            transform_input(column, rows[x]);
        }
        SK_UNROLL
        for (int y = 0; y < kTileSize; ++y) {
            const Vector line[kTileSize] = {rows[0][y], rows[1][y], rows[2][y], rows[3][y]};
            Vector points[kTileSize];
            transform_input(line, points);
            SK_UNROLL
            for (int x = 0; x < kTileSize; ++x) store(to + (y * kTileSize + x) * point_step + c, points[x]);
        }
    }
}

// The products of one tile at 16 points, `point_step` apart, to 2 x 2 outputs.
SK_NOINLINE void store_tile(const Convolution<float>& p, const float* products, int64_t point_step, int64_t filters,
                            const float* bias, int64_t row, int64_t column, float* out) {
    const int64_t rows = least(2, p.axes[1].out - row), columns = least(2, p.axes[2].out - column);
    for (int64_t f = 0; f < filters; f += kLanes) {
        Vector halves[2][kTileSize], results[2][2];
        SK_UNROLL
        for (int x = 0; x < kTileSize; ++x)
            transform_output(load(products + x * point_step + f), load(products + (4 + x) * point_step + f),
                             load(products + (8 + x) * point_step + f), load(products + (12 + x) * point_step + f),
                             halves[0][x], halves[1][x]);
        SK_UNROLL
        for (int y = 0; y < 2; ++y)
            transform_output(halves[y][0], halves[y][1], halves[y][2], halves[y][3], results[y][0], results[y][1]);
        alignas(64) float added[kLanes] = {};
        const int64_t count = least(kLanes, filters - f);
        if (bias)
            for (int64_t i = 0; i < count; ++i) added[i] = bias[(f + i) * p.bias_step];
        for (int64_t y = 0; y < rows; ++y) {
            for (int64_t x = 0; x < columns; ++x) {
                float* to = out + (row + y) * p.of_out.axis[1] + (column + x) * p.of_out.axis[2] + f;
                const Vector result = results[y][x] + load(added);
                if (count == kLanes)
                    store(to, result);
                else
                    for (int64_t i = 0; i < count; ++i) to[i] = result[i];
            }
        }
    }
}

// A unit of work is `unit_tiles` tiles of one image. `room`: for each block, transformed inputs, then products.
SK_NOINLINE void convolve_winograd(const Convolution<float>& p, const float* filters, int64_t unit_tiles, float* room) {
    const int64_t tile_rows = divide_up(p.axes[1].out, 2), tile_columns = divide_up(p.axes[2].out, 2);
    const int64_t tiles = tile_rows * tile_columns, parts = divide_up(tiles, unit_tiles);
    const int64_t held = round_up(unit_tiles, kTileRows), panels = divide_up(p.filters, kTileColumns);
    float* inputs = room + sk::block_idx() * kPoints * held * (p.channels + kUnitFilters);
    float* products = inputs + kPoints * held * p.channels;
    const Range units = block_share(p.images * parts);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t image = unit / parts, first = tiles * (unit % parts) / parts;
        const int64_t count = tiles * (unit % parts + 1) / parts - first;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = (first + i) / tile_columns, column = (first + i) % tile_columns;
            transform_tile(p, p.input + image * p.of_input.batch, 2 * row - p.axes[1].padding,
                           2 * column - p.axes[2].padding, inputs + i * p.channels, held * p.channels);
        }
        for (int64_t f = 0; f < p.filters; f += kUnitFilters) {
            const int64_t some = least(kUnitFilters, p.filters - f);
            for (int point = 0; point < kPoints; ++point) {
                for (int64_t k = 0; k < p.channels; k += kDepth) {
                    const int64_t depth = least(kDepth, p.channels - k);
                    for (int64_t j = 0; j < some; j += kTileColumns) {
                        const int64_t vectors = divide_up(least(kTileColumns, some - j), kLanes);
                        const float* panel = filters + k * kTileColumns +
                                             panel_offset(p.channels, panels, point, (f + j) / kTileColumns);
                        for (int64_t r = 0; r < count; r += kTileRows) {
                            const int64_t row = point * held + r;
                            register_tile_of(vectors, inputs + row * p.channels + k, p.channels, panel, depth,
                                             products + row * kUnitFilters + j, kUnitFilters, k == 0);
                        }
                    }
                }
            }
            const float* bias = p.bias ? p.bias + f * p.bias_step : nullptr;
            float* out = p.out + image * p.of_out.batch + f;
            for (int64_t i = 0; i < count; ++i)
                store_tile(p, products + i * kUnitFilters, held * kUnitFilters, some, bias,
                           (first + i) / tile_columns * 2, (first + i) % tile_columns * 2, out);
        }
    }
}

}  // namespace

extern "C" void winograd_filters_float32(const float* weight, float* transformed, int64_t channels, int64_t filters,
                                         int64_t weight_filter, int64_t weight_channel, SK_AXES(weight_stride)) {
    transform_all_filters(weight, transformed, channels, filters,
                          {0, weight_filter, weight_channel, SK_STRIDES_OF(weight)});
}

// `weight` are the transformed filters.
extern "C" void winograd_float32(const float* input, const float* weight, float* out, float* room,
                                 SK_CONVOLUTION_PARAMETERS, int64_t unit_tiles) {
    convolve_winograd(SK_CONVOLUTION_OF(nullptr, 0, false), weight, unit_tiles, room);
}

extern "C" void winograd_float32_bias(const float* input, const float* weight, float* out, float* room,
                                      SK_CONVOLUTION_PARAMETERS, int64_t unit_tiles, const float* bias,
                                      int64_t bias_step) {
    convolve_winograd(SK_CONVOLUTION_OF(bias, bias_step, false), weight, unit_tiles, room);
}
