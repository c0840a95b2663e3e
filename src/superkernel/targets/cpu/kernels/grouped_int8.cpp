// grouped_int8.cpp: for every group: its int8 rows of x times its int8 weight, exact; plus bias, times scales, rounded.
//
// All blocks share the work of every group. `count` groups from `first_group` on lie in `weight`.
#include "grouped.h"

#include "quant_matmul.h"

#define SK_FACTOR(name) const void *name, DType name##_dtype, int64_t name##_group, int64_t name##_step
#define SK_FACTOR_OF(name) {name, name##_dtype, name##_group, name##_step}

namespace {

SK_INLINE int64_t size_of(DType dtype) {
    if (dtype == DType::kInt8) return 1;
    return dtype == DType::kBfloat16 || dtype == DType::kFloat16 ? 2 : 4;
}

// The same tensor from another element on.
SK_INLINE Factor moved(Factor factor, int64_t elements) {
    factor.at = static_cast<const char*>(factor.at) + elements * size_of(factor.dtype);
    return factor;
}

}  // namespace

extern "C" void grouped_int8(const int8_t* x, const int8_t* weight, void* out, SK_GROUPS, SK_GROUPED_STRIDES,
                             DType out_dtype, SK_FACTOR(scale), SK_FACTOR(per_token_scale), SK_FACTOR(bias)) {
    const GroupList of_rows{list, list_kind, list_step, groups, rows};
    if (!of_rows.fits()) return;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t begin = of_rows.begin_of(first_group + i), end = of_rows.end_of(first_group + i);
        QuantFinish finish{moved(SK_FACTOR_OF(scale), i * scale_group),
                           moved(SK_FACTOR_OF(per_token_scale), begin * per_token_scale_step),
                           moved(SK_FACTOR_OF(bias), i * bias_group),
                           {nullptr, DType::kNone, 0, 0},
                           static_cast<char*>(out) + begin * out_row * size_of(out_dtype),
                           out_dtype,
                           {0, out_row, 1},
                           {},
                           {},
                           {}};
        int8_products({x + begin * x_row, weight + i * weight_group, 1, end - begin, n, k, {0, x_row, x_column},
                      {0, weight_row, weight_column}}, finish);
    }
}
