// grouped.cpp: for every group: its rows of x, times its weight, plus its bias. For float32, bfloat16 and float16.
//
// Compiled with SK_GROUPED_FLOAT32, SK_GROUPED_BFLOAT16 or SK_GROUPED_FLOAT16 defined. All blocks share the work of
// every group, and the result does not depend on their number. `count` groups from `first_group` on lie in `weight`.
#include "grouped.h"

#include "skinny.h"
#include "tiles.h"

namespace {

template <class T>
SK_INLINE void product_of_group(const Problem<T>& p) {
    if (p.m == 0 || p.n == 0) return;
    const bool along_depth = p.of_b.row == 1, along_columns = p.of_b.column == 1;
    if (p.m <= kSkinnyRows && along_depth) return skinny_matmul(p, Along::kDepth);
    if (p.m <= kSkinnyRows && along_columns) return skinny_matmul(p, Along::kColumns);
    tiled_matmul(p);
}

}  // namespace

#define SK_GROUPED(name, T)                                                                                          \
    extern "C" void name(const T* x, const T* weight, T* out, SK_GROUPS, SK_GROUPED_STRIDES, const T* bias,          \
                         int64_t bias_given, int64_t bias_group, int64_t bias_step) {                                \
        const GroupList of_rows{list, list_kind, list_step, groups, rows};                                           \
        if (!of_rows.fits()) return;                                                                                 \
        for (int64_t i = 0; i < count; ++i) {                                                                        \
            const int64_t begin = of_rows.begin_of(first_group + i), end = of_rows.end_of(first_group + i);          \
            product_of_group<T>({x + begin * x_row, weight + i * weight_group,                                       \
                                 bias_given ? bias + i * bias_group : nullptr, out + begin * out_row, 1,             \
                                 end - begin, n, k, {0, x_row, x_column}, {0, weight_row, weight_column},            \
                                 {0, 0, bias_step}, {0, out_row, 1}, 1, 1});                                         \
        }                                                                                                            \
    }

#ifdef SK_GROUPED_FLOAT32
SK_GROUPED(grouped_float32, float)
#endif
#ifdef SK_GROUPED_BFLOAT16
SK_GROUPED(grouped_bfloat16, Bfloat16)
#endif
#ifdef SK_GROUPED_FLOAT16
SK_GROUPED(grouped_float16, Float16)
#endif
