// convolution.cpp: convolutions in one and two dimensions: patches of the image as rows of a matrix, times the filters.
//
// A unit of work is a tile of output positions of one image and one group, for a part of its output channels. Its
// patches are copied in the order in which a filter lies in memory, with zeros outside of the image.
#include "grouped_mm_rows.h"

namespace {

struct Image {
    int64_t batch, channel, row, column;  // strides
};

struct Problem {
    const float *input, *weight;
    float* out;
    int64_t images, groups, channels, filters;  // channels and filters of one group
    int64_t height, width, filter_height, filter_width, out_height, out_width;
    int64_t step_row, step_column, pad_row, pad_column, dilation_row, dilation_column;
    Image of_input, of_weight, of_out;
    int64_t tile, parts;  // positions of a unit; into how many parts its filters are divided
};

// Elements of the filter that lie within the image: kernel positions [begin, end).
struct Inside {
    int64_t begin, end;
};

SK_INLINE Inside inside(int64_t first, int64_t dilation, int64_t count, int64_t size) {
    Inside found = {0, count};
    while (found.begin < count && first + found.begin * dilation < 0) ++found.begin;
    while (found.end > found.begin && first + (found.end - 1) * dilation >= size) --found.end;
    return found;
}

SK_NOINLINE void copy_patch(const Problem& p, const float* image, int64_t position, float* patch) {
    const int64_t top = position / p.out_width * p.step_row - p.pad_row;
    const int64_t left = position % p.out_width * p.step_column - p.pad_column;
    const Inside rows = inside(top, p.dilation_row, p.filter_height, p.height);
    const Inside columns = inside(left, p.dilation_column, p.filter_width, p.width);
    const int64_t depth = p.channels * p.filter_height * p.filter_width;
    if (rows.end - rows.begin < p.filter_height || columns.end - columns.begin < p.filter_width)
        for (int64_t i = 0; i < depth; ++i) patch[i] = 0;
    const int64_t from_step = p.dilation_column * p.of_input.column, to_step = p.of_weight.column;
    for (int64_t c = 0; c < p.channels; ++c) {
        for (int64_t y = rows.begin; y < rows.end; ++y) {
            const float* from = image + c * p.of_input.channel + (top + y * p.dilation_row) * p.of_input.row +
                                left * p.of_input.column;
            float* to = patch + c * p.of_weight.channel + y * p.of_weight.row;
            if (from_step == 1 && to_step == 1)
                for (int64_t x = columns.begin; x < columns.end; ++x) to[x] = from[x];
            else
                for (int64_t x = columns.begin; x < columns.end; ++x) to[x * to_step] = from[x * from_step];
        }
    }
}

SK_NOINLINE void convolve(const Problem& p, const float* bias, int64_t bias_step, float* patches) {
    const int64_t positions = p.out_height * p.out_width, depth = p.channels * p.filter_height * p.filter_width;
    const int64_t tiles = (positions + p.tile - 1) / p.tile;
    const int64_t units = p.images * p.groups * tiles * p.parts, block = sk::block_idx(), blocks = sk::block_num();
    for (int64_t unit = units * block / blocks; unit < units * (block + 1) / blocks; ++unit) {
        const int64_t part = unit % p.parts, first = unit / p.parts % tiles * p.tile;
        const int64_t group = unit / p.parts / tiles % p.groups, image = unit / p.parts / tiles / p.groups;
        const int64_t count = smaller(p.tile, positions - first);
        const float* from = p.input + image * p.of_input.batch + group * p.channels * p.of_input.channel;
        for (int64_t i = 0; i < count; ++i) copy_patch(p, from, first + i, patches + i * depth);
        const Product<float> product = {patches,
                                        p.weight + group * p.filters * p.of_weight.batch,
                                        p.out + image * p.of_out.batch + group * p.filters * p.of_out.channel +
                                            first * p.of_out.column,
                                        count,
                                        p.filters,
                                        depth,
                                        depth,
                                        1,
                                        1,
                                        p.of_weight.batch,
                                        p.of_out.column,
                                        p.of_out.channel};
        const int64_t begin = p.filters * part / p.parts, end = p.filters * (part + 1) / p.parts;
        product_columns(product, begin, end);
        if (bias == nullptr) continue;
        for (int64_t filter = begin; filter < end; ++filter) {
            const float added = bias[(group * p.filters + filter) * bias_step];
            float* to = product.out + filter * p.of_out.channel;
            for (int64_t i = 0; i < count; ++i) to[i * p.of_out.column] += added;
        }
    }
}

}  // namespace

#define SK_IMAGE(of) int64_t of##_batch, int64_t of##_channel, int64_t of##_row, int64_t of##_column
#define SK_IMAGE_OF(of) {of##_batch, of##_channel, of##_row, of##_column}
#define SK_PROBLEM                                                                                                   \
    int64_t images, int64_t groups, int64_t channels, int64_t filters, int64_t height, int64_t width,                \
        int64_t filter_height, int64_t filter_width, int64_t out_height, int64_t out_width, int64_t step_row,        \
        int64_t step_column, int64_t pad_row, int64_t pad_column, int64_t dilation_row, int64_t dilation_column,     \
        SK_IMAGE(input), SK_IMAGE(weight), SK_IMAGE(out), int64_t tile, int64_t parts
#define SK_PROBLEM_OF                                                                                               \
    {input, weight, out, images, groups, channels, filters, height, width, filter_height, filter_width, out_height, \
     out_width, step_row, step_column, pad_row, pad_column, dilation_row, dilation_column, SK_IMAGE_OF(input),      \
     SK_IMAGE_OF(weight), SK_IMAGE_OF(out), tile, parts}

// Each block has its own part of `room`: the patches of one tile.
SK_INLINE float* patches_of(float* room, int64_t tile, int64_t depth) { return room + sk::block_idx() * tile * depth; }

extern "C" void convolution(const float* input, const float* weight, float* out, float* room, SK_PROBLEM) {
    convolve(SK_PROBLEM_OF, nullptr, 0, patches_of(room, tile, channels * filter_height * filter_width));
}

extern "C" void convolution_bias(const float* input, const float* weight, float* out, float* room, SK_PROBLEM,
                                 const float* bias, int64_t bias_step) {
    convolve(SK_PROBLEM_OF, bias, bias_step, patches_of(room, tile, channels * filter_height * filter_width));
}
