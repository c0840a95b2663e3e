// swiglu_quant.cpp: rows of gates and values: dequantised, multiplied, quantised to int8. Blocks divide the rows.
//
// All in double, step by step as the operator's reference does, so that the rounded results are the same.
#include "double_exp.h"
#include "quant_elements.h"
#include "problem.h"

namespace {

constexpr int64_t kSpanOfRow = 2048;  // elements of a row that are computed at a time

// A tensor that is read along with x, in strides that may be 0; `dtype` is kNone if it is not given.
struct Along2 {
    const void* at;
    DType dtype;
    int64_t row, column;

    explicit operator bool() const { return dtype != DType::kNone; }
};

struct SwigluProblem {
    Along2 x, weight_scale, activation_scale, bias, quant_scale, quant_offset;
    const int64_t* group_index;  // counts of rows, or null
    int64_t groups, group_step;
    int8_t* y;
    float* scale;
    int64_t rows, half;  // half: elements of a row of y
    bool left, dynamic;
};

struct SwigluScratch {
    alignas(64) double gate[kSpanOfRow];
    alignas(64) double value[kSpanOfRow];
    alignas(64) double other[kSpanOfRow];
};

SK_INLINE void multiply(double* values, const Along2& by, int64_t row, int64_t column, int64_t count, double* other) {
    if (by.column == 0) {
        read_doubles(by.dtype, by.at, row * by.row, 1, 1, other);
        const double factor = other[0];
        for (int64_t i = 0; i < count; ++i) values[i] *= factor;
    } else {
        read_doubles(by.dtype, by.at, row * by.row + column * by.column, by.column, count, other);
        for (int64_t i = 0; i < count; ++i) values[i] *= other[i];
    }
}

// Elements of x from `column` on, dequantised with the scales of `group`.
SK_INLINE void dequantise(const SwigluProblem& p, int64_t row, int64_t group, int64_t column, int64_t count, double* to,
                          double* other) {
    if (p.bias) {  // int32, and the sum wraps
        const int32_t* x = static_cast<const int32_t*>(p.x.at) + row * p.x.row + column * p.x.column;
        const int32_t* bias = static_cast<const int32_t*>(p.bias.at) + column * p.bias.column;
        for (int64_t i = 0; i < count; ++i)
            to[i] = int32_t(uint32_t(x[i * p.x.column]) + uint32_t(bias[i * p.bias.column]));
    } else {
        read_doubles(p.x.dtype, p.x.at, row * p.x.row + column * p.x.column, p.x.column, count, to);
    }
    if (p.weight_scale) multiply(to, p.weight_scale, group, column, count, other);
    if (p.activation_scale) multiply(to, p.activation_scale, row, 0, count, other);
}

// The products from `column` on, ready to be quantised, to scratch.value.
SK_NOINLINE void products(const SwigluProblem& p, int64_t row, int64_t group, int64_t column, int64_t count,
                       SwigluScratch& scratch) {
    dequantise(p, row, group, column + (p.left ? 0 : p.half), count, scratch.gate, scratch.other);
    dequantise(p, row, group, column + (p.left ? p.half : 0), count, scratch.value, scratch.other);
    for (int64_t i = count; i % kDoubles != 0; ++i) scratch.gate[i] = scratch.value[i] = 0;  // computed, too
    for (int64_t i = 0; i < count; i += kDoubles) {
        const Doubles gate = load_doubles(scratch.gate + i), value = load_doubles(scratch.value + i);
        store_doubles(scratch.value + i, gate / (1.0 + exp(-gate)) * value);
    }
    if (p.quant_scale) multiply(scratch.value, p.quant_scale, group, column, count, scratch.other);
}

// The larger of both; NaN is larger than all.
SK_INLINE double larger(double x, double y) { return x > y || x != x ? x : y; }

SK_INLINE double largest_size(const double* values, int64_t count, double so_far) {
    Doubles most = so_far - Doubles{};
    int64_t i = 0;
    for (; i + kDoubles <= count; i += kDoubles) {
        const Doubles size = Doubles(Longs(load_doubles(values + i)) & INT64_MAX);
        most = choose((most > size) | (most != most), most, size);
    }
    for (; i < count; ++i) so_far = larger(so_far, __builtin_fabs(values[i]));
    for (int lane = 0; lane < kDoubles; ++lane) so_far = larger(so_far, most[lane]);
    return so_far;
}

// As from_double, side by side: an integer limit can be applied before the value is rounded.
SK_INLINE void round_to_int8(const double* values, int64_t count, int8_t* y) {
    typedef int8_t Bytes __attribute__((vector_size(kDoubles), aligned(1), may_alias));
    constexpr double shift = 0x1.8p52;  // added and taken away, it leaves the nearest integer, of two the even one
    int64_t i = 0;
    for (; i + kDoubles <= count; i += kDoubles) {
        const Doubles value = load_doubles(values + i);
        const Doubles low = choose(value < -128.0, -128.0 - Doubles{}, value);
        const Doubles bounded = choose(low > 127.0, 127.0 - Doubles{}, choose(value != value, Doubles{}, low));
        *reinterpret_cast<Bytes*>(y + i) = __builtin_convertvector(bounded + shift - shift, Bytes);
    }
    for (; i < count; ++i) from_double(values[i], y[i]);
}

SK_NOINLINE void quantise_row(const SwigluProblem& p, int64_t row, int64_t group, SwigluScratch& scratch) {
    int8_t* y = p.y + row * p.half;
    double scale = 0;
    if (p.dynamic) {
        double largest = 0;
        for (int64_t i = 0; i < p.half; i += kSpanOfRow) {
            const int64_t count = least(kSpanOfRow, p.half - i);
            products(p, row, group, i, count, scratch);
            largest = largest_size(scratch.value, count, largest);
        }
        p.scale[row] = float(largest / 127);
        scale = p.scale[row];
    } else {
        p.scale[row] = 0;
    }
    for (int64_t i = 0; i < p.half; i += kSpanOfRow) {
        const int64_t count = least(kSpanOfRow, p.half - i);
        if (!p.dynamic || p.half > kSpanOfRow) products(p, row, group, i, count, scratch);
        double* values = scratch.value;
        if (p.dynamic) {
            for (int64_t j = 0; j < count; ++j) values[j] /= scale;
        } else if (p.quant_offset) {
            const Along2& offset = p.quant_offset;
            const int64_t first = row * offset.row + i * offset.column;
            read_doubles(offset.dtype, offset.at, first, offset.column, count, scratch.other);
            for (int64_t j = 0; j < count; ++j) values[j] += scratch.other[j];
        }
        round_to_int8(values, count, y + i);
    }
}

SK_NOINLINE void swiglu_rows(const SwigluProblem& p) {
    SwigluScratch scratch;
    const Range rows = block_share(p.rows);
    if (p.group_index == nullptr) {
        for (int64_t row = rows.begin; row < rows.end; ++row) quantise_row(p, row, row, scratch);
        return;
    }
    int64_t total = 0;
    for (int64_t group = 0; group < p.groups; ++group) {
        const int64_t count = p.group_index[group * p.group_step];
        if (count < 0) return sk::fail("dequant_swiglu_quant: group_index has a negative count");
        if (count > p.rows - total)
            return sk::fail("dequant_swiglu_quant: group_index adds up to more rows than x has");
        total += count;
    }
    int64_t group = 0, end = 0;  // rows before `end` belong to groups before `group`
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        while (group < p.groups && end <= row) end += p.group_index[group++ * p.group_step];
        if (row < end) {
            quantise_row(p, row, group - 1, scratch);
        } else {  // a row of no group
            p.scale[row] = 0;
            for (int64_t i = 0; i < p.half; ++i) p.y[row * p.half + i] = 0;
        }
    }
}

}  // namespace

#define SK_ALONG(name) const void *name, DType name##_dtype, int64_t name##_row, int64_t name##_column
#define SK_ALONG_OF(name) {name, name##_dtype, name##_row, name##_column}

extern "C" void swiglu_quant(SK_ALONG(x), int8_t* y, float* scale, int64_t rows, int64_t half, int64_t left,
                             int64_t dynamic, SK_ALONG(weight_scale), SK_ALONG(activation_scale), SK_ALONG(bias),
                             SK_ALONG(quant_scale), SK_ALONG(quant_offset), const int64_t* group_index, int64_t groups,
                             int64_t group_step) {
    swiglu_rows({SK_ALONG_OF(x), SK_ALONG_OF(weight_scale), SK_ALONG_OF(activation_scale), SK_ALONG_OF(bias),
                 SK_ALONG_OF(quant_scale), SK_ALONG_OF(quant_offset), groups < 0 ? nullptr : group_index, groups,
                 group_step, y, scale, rows, half, left != 0, dynamic != 0});
}
