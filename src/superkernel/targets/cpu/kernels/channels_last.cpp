// channels_last.cpp: images with channels in planes -> copies whose channels are neighbours in memory.
//
// Compiled with SK_CHANNELS_LAST_FLOAT32, SK_CHANNELS_LAST_BFLOAT16 or SK_CHANNELS_LAST_FLOAT16 defined: one object per
// element type.
#include "convolution_problem.h"
#include "tiles.h"

namespace {

constexpr int64_t kCopiedPixels = 64;  // of a unit of work

// kLanes x kLanes elements at a time; `plane` elements lie between the channels of the source.
SK_INLINE int64_t transpose_lanes(const float* from, int64_t plane, int64_t pixels, int64_t channels, float* to,
                                  int64_t pixel) {
    if (pixels < kLanes) return 0;
    const int64_t whole = channels / kLanes * kLanes;
    for (int64_t c = 0; c < whole; c += kLanes) {
        for (int64_t i = 0; i + kLanes <= pixels; i += kLanes) {
            Vector block[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) block[lane] = load(from + (c + lane) * plane + i);
            transpose(block);
            SK_UNROLL
            for (int lane = 0; lane < kLanes; ++lane) store(to + (i + lane) * pixel + c, block[lane]);
        }
    }
    return whole;
}

// Returns for how many channels it has copied the pixels that fill vectors: elements of other types are copied singly.
template <class T>
SK_INLINE int64_t transpose_lanes(const T*, int64_t, int64_t, int64_t, T*, int64_t) {
    return 0;
}

template <class T>
SK_NOINLINE void copy_pixels(const T* from, int64_t plane, int64_t step, int64_t pixels, int64_t channels, T* to) {
    const int64_t done = step == 1 ? transpose_lanes(from, plane, pixels, channels, to, channels) : 0;
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t i = c < done ? pixels / kLanes * kLanes : 0; i < pixels; ++i)
            to[i * channels + c] = from[c * plane + i * step];
}

// A unit of work is a part of a line of pixels of one image.
template <class T>
SK_NOINLINE void copy_channels_last(const T* input, T* out, int64_t images, int64_t channels,
                                    const int64_t (&sizes)[kAxes], const Layout& of_input) {
    const int64_t parts = divide_up(sizes[2], kCopiedPixels), lines = sizes[0] * sizes[1];
    const Range units = block_share(images * lines * parts);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t first = unit % parts * kCopiedPixels, line = unit / parts;
        const int64_t row = line % sizes[1], depth = line / sizes[1] % sizes[0], image = line / lines;
        const T* from = input + image * of_input.batch + depth * of_input.axis[0] + row * of_input.axis[1] +
                        first * of_input.axis[2];
        copy_pixels(from, of_input.channel, of_input.axis[2], least(kCopiedPixels, sizes[2] - first), channels,
                    out + (line * sizes[2] + first) * channels);
    }
}

}  // namespace

#define SK_CHANNELS_LAST(name, T)                                                                                 \
    extern "C" void name(const T* input, T* out, int64_t images, int64_t channels, SK_AXES(input),                \
                         int64_t input_batch, int64_t input_channel, SK_AXES(input_stride)) {                     \
        copy_channels_last<T>(input, out, images, channels, {input_0, input_1, input_2},                          \
                              {input_batch, input_channel, SK_STRIDES_OF(input)});                                \
    }

#ifdef SK_CHANNELS_LAST_FLOAT32
SK_CHANNELS_LAST(channels_last_float32, float)
#endif
#ifdef SK_CHANNELS_LAST_BFLOAT16
SK_CHANNELS_LAST(channels_last_bfloat16, Bfloat16)
#endif
#ifdef SK_CHANNELS_LAST_FLOAT16
SK_CHANNELS_LAST(channels_last_float16, Float16)
#endif
