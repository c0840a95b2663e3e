// matmul.cpp: out = alpha * (a @ b) + beta * c, batched, for any shapes and strides.
//
// Compiled with SK_MATMUL_FLOAT32, SK_MATMUL_BFLOAT16, SK_MATMUL_FLOAT16 or SK_MATMUL_PANELS (floats, b stored in panels)
// defined: one object for each, when it is needed.
// Strides are in elements and may be 0. Sums are floats whatever the element type, and are rounded once. Blocks divide
// batches, rows and columns of the output, never k, so the result does not depend on their number.
#include "panels.h"
#include "skinny.h"
#include "tiles.h"

namespace {

// out = beta * c, or zeros: the product has nothing to add up.
template <class T>
SK_NOINLINE void without_product(const Problem<T>& p) {
    float zeros[256];
    const Range units = block_share(p.batches * p.m);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        for (int64_t column = 0; column < p.n; column += 256) {
            for (float& zero : zeros) zero = 0;
            finish(p, unit / p.m, unit % p.m, column, 1, least(256, p.n - column), zeros, 256);
        }
    }
}

template <class T>
SK_INLINE void swap(T& x, T& y) {
    const T old = x;
    x = y;
    y = old;
}

// The transposed problem: (a @ b)^T = b^T @ a^T.
template <class T>
SK_INLINE void transpose(Problem<T>& p) {
    swap(p.a, p.b);
    swap(p.m, p.n);
    swap(p.of_a, p.of_b);
    Strides* const all[] = {&p.of_a, &p.of_b, &p.of_c, &p.of_out};
    for (Strides* strides : all) swap(strides->row, strides->column);
}

// Chooses the algorithm and prefetches weights before it waits for the producers of a.
template <class T>
SK_INLINE void matmul(Problem<T> p) {
    const bool nothing = p.batches == 0 || p.m == 0 || p.n == 0;
    if (p.beta == 0) p.c = nullptr;  // c is not read
    const bool no_product = p.k == 0 || p.alpha == 0;
    if (p.n < p.m && p.n <= kSkinnyRows) transpose(p);
    const bool along_columns = p.of_b.column == 1 || p.n == 1, along_depth = p.of_b.row == 1;
    const bool few = p.m <= kSkinnyRows && (along_depth || along_columns);
    const Along along = along_depth && !(along_columns && p.k == 1) ? Along::kDepth : Along::kColumns;
    if (few && !nothing && !no_product) prefetch_weights(p, along);
    sk::wait_previous();
    if (nothing) return;
    if (no_product) {  // a and b are not read either, as in BLAS
        p.alpha = 1;
        return without_product(p);
    }
    if (few && uses_panels(p, along)) return panel_matmul(p, false);
    return few ? skinny_matmul(p, along) : tiled_matmul(p);
}

// The same for a b that is stored in panels; only for problems that use them.
SK_INLINE void matmul_of_panels(Problem<float> p) {
    if (p.beta == 0) p.c = nullptr;
    prefetch_panels(p);
    sk::wait_previous();
    panel_matmul(p, true);
}

}  // namespace

#define SK_SIZES int64_t batches, int64_t m, int64_t n, int64_t k
#define SK_STRIDES(of) int64_t of##_batch, int64_t of##_row, int64_t of##_column
#define SK_STRIDES_OF(of) {of##_batch, of##_row, of##_column}

#define SK_MATMUL_BY(function, name, T)                                                                           \
    extern "C" void name(const T* a, const T* b, T* out, SK_SIZES, SK_STRIDES(a), SK_STRIDES(b), SK_STRIDES(out), \
                         float alpha) {                                                                           \
        function({a, b, nullptr, out, batches, m, n, k, SK_STRIDES_OF(a), SK_STRIDES_OF(b), {0, 0, 0},           \
                   SK_STRIDES_OF(out), alpha, 0});                                                                \
    }                                                                                                             \
    extern "C" void name##_add(const T* a, const T* b, T* out, SK_SIZES, SK_STRIDES(a), SK_STRIDES(b),            \
                               SK_STRIDES(out), float alpha, const T* c, SK_STRIDES(c), float beta) {             \
        function({a, b, c, out, batches, m, n, k, SK_STRIDES_OF(a), SK_STRIDES_OF(b), SK_STRIDES_OF(c),          \
                   SK_STRIDES_OF(out), alpha, beta});                                                             \
    }

#define SK_MATMUL(name, T) SK_MATMUL_BY(matmul<T>, name, T)

#ifdef SK_MATMUL_FLOAT32
SK_MATMUL(matmul_float32, float)
#endif
#ifdef SK_MATMUL_PANELS
SK_MATMUL_BY(matmul_of_panels, matmul_panels, float)
#endif
#ifdef SK_MATMUL_BFLOAT16
SK_MATMUL(matmul_bfloat16, Bfloat16)
#endif
#ifdef SK_MATMUL_FLOAT16
SK_MATMUL(matmul_float16, Float16)
#endif
