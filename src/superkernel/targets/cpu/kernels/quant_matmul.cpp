// quant_matmul.cpp: int8 matrices and scales to int8, int32, float16 or bfloat16, batched, for any strides of both.
//
// The sums are exact, so the result does not depend on how the blocks divide rows and columns.
#include "quant_matmul.h"

#define SK_STRIDES(of) int64_t of##_batch, int64_t of##_row, int64_t of##_column
#define SK_FACTOR(name) const void *name, DType name##_dtype, int64_t name##_batch, int64_t name##_step

extern "C" void quant_matmul(const int8_t* x1, const int8_t* x2, void* out, DType out_dtype, int64_t batches,
                             int64_t m, int64_t n, int64_t k, SK_STRIDES(x1), SK_STRIDES(x2), SK_STRIDES(out),
                             SK_FACTOR(scale), SK_FACTOR(pertoken_scale), SK_FACTOR(bias), SK_FACTOR(offset)) {
    QuantFinish finish{{scale, scale_dtype, scale_batch, scale_step},
                       {pertoken_scale, pertoken_scale_dtype, pertoken_scale_batch, pertoken_scale_step},
                       {bias, bias_dtype, bias_batch, bias_step},
                       {offset, offset_dtype, offset_batch, offset_step},
                       out,
                       out_dtype,
                       {out_batch, out_row, out_column},
                       {},
                       {},
                       {}};
    int8_products({x1, x2, batches, m, n, k, {x1_batch, x1_row, x1_column}, {x2_batch, x2_row, x2_column}}, finish);
}
