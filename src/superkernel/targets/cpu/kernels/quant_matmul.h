// quant_matmul.h: the epilogue of int8 matmul: bias, scales, rounding.
#pragma once

#include "quant_elements.h"
#include "int8_skinny.h"

namespace {

// A tensor that is read as floats: one element per row or per column. Where it is not given, `dtype` is kNone.
struct Factor {
    const void* at;
    DType dtype;
    int64_t batch, step;

    explicit operator bool() const { return dtype != DType::kNone; }
};

// rounded((sums + bias) * scale * per_row + added), in this order; every step is rounded as torch rounds it.
struct QuantFinish {
    Factor scale, per_row, bias, offset;
    void* out;
    DType out_dtype;
    Strides of_out;

    alignas(64) float factors[kInt8MostColumns];
    alignas(64) float added[kInt8MostColumns];
    alignas(64) int32_t before[kInt8MostColumns];

    // What the rows of a tile share.
    SK_NOINLINE void columns(const Tile& tile) {
        const int64_t count = tile.columns, bias_at = tile.batch * bias.batch + tile.column * bias.step;
        for (int64_t i = 0; i < count; ++i) before[i] = 0, added[i] = 0;
        if (bias.dtype == DType::kInt32)
            for (int64_t i = 0; i < count; ++i)
                before[i] = static_cast<const int32_t*>(bias.at)[bias_at + i * bias.step];
        else if (bias)
            read_floats(bias.dtype, bias.at, bias_at, bias.step, count, added);
        if (offset) read_floats(offset.dtype, offset.at, tile.column * offset.step, offset.step, count, added);
        if (scale)
            read_floats(scale.dtype, scale.at, tile.batch * scale.batch + tile.column * scale.step, scale.step, count,
                        factors);
    }

    SK_NOINLINE void row(const Tile& tile, int64_t row, const int32_t* sums) const {
        const int64_t to = of_out.at(tile.batch, row, tile.column), count = tile.columns;
        if (out_dtype == DType::kInt32) {
            int32_t* __restrict words = static_cast<int32_t*>(out) + to;
            for (int64_t i = 0; i < count; ++i) words[i] = int32_t(uint32_t(sums[i]) + uint32_t(before[i]));
            return;
        }
        alignas(64) float values[kInt8MostColumns];
        for (int64_t i = 0; i < count; ++i)
            values[i] = float(int32_t(uint32_t(sums[i]) + uint32_t(before[i]))) * factors[i];
        if (per_row) {
            const float factor = static_cast<const float*>(per_row.at)[row * per_row.step];
            for (int64_t i = 0; i < count; ++i) values[i] *= factor;
        }
        if (offset || (bias && bias.dtype != DType::kInt32))
            for (int64_t i = 0; i < count; ++i) values[i] += added[i];
        write_floats(out_dtype, values, count, out, to);
    }
};

}  // namespace
