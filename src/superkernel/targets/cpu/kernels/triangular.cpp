// triangular.cpp: solves A X = B for triangular matrices A, batched, for any strides: aten::linalg_solve_triangular.
//
// Compiled with SK_ELEMENT. Blocks divide batches and panels of columns of B. A panel is copied, solved row by row and
// stored, always in the same order, so results do not depend on the number of blocks.
#include "problem.h"
#include "strided_rows.h"

namespace {

using Element = SK_ELEMENT;

constexpr int64_t kPanel = 16;  // columns

// Row `row` of the panel, from the `count` solved rows that begin with `first`.
SK_INLINE void solve_row(const Element* a, int64_t a_column, int64_t row, int64_t first, int64_t count, bool unit,
                         Element* panel) {
    Element total[kPanel];
    Element* to = panel + row * kPanel;
    for (int64_t j = 0; j < kPanel; ++j) total[j] = to[j];
    for (int64_t i = first; i < first + count; ++i) {
        const Element factor = a[i * a_column];
        const Element* solved = panel + i * kPanel;
        for (int64_t j = 0; j < kPanel; ++j) total[j] -= factor * solved[j];
    }
    const Element diagonal = unit ? Element(1) : a[row * a_column];
    for (int64_t j = 0; j < kPanel; ++j) to[j] = total[j] / diagonal;
}

}  // namespace

// `room` holds a panel of n rows for each block.
extern "C" void solve_triangular(const Element* a, const Element* b, Element* out, Element* room, int64_t batches,
                                 int64_t n, int64_t columns, int64_t upper, int64_t unit, int64_t a_batch, int64_t a_row,
                                 int64_t a_column, int64_t b_batch, int64_t b_row, int64_t b_column, int64_t out_batch,
                                 int64_t out_row, int64_t out_column) {
    const Strides of_a{a_batch, a_row, a_column}, of_b{b_batch, b_row, b_column}, of_out{out_batch, out_row, out_column};
    const int64_t panels = divide_up(columns, kPanel);
    const Range units = block_share(batches * panels);
    Element* panel = room + sk::block_idx() * n * kPanel;
    for (int64_t at = units.begin; at < units.end; ++at) {
        const int64_t batch = at / panels, column = at % panels * kPanel, count = least(kPanel, columns - column);
        for (int64_t row = 0; row < n; ++row)
            for (int64_t j = 0; j < kPanel; ++j)
                panel[row * kPanel + j] = j < count ? b[of_b.at(batch, row, column + j)] : Element(0);
        for (int64_t step = 0; step < n; ++step) {
            const int64_t row = upper ? n - 1 - step : step;
            solve_row(a + of_a.at(batch, row, 0), a_column, row, upper ? row + 1 : 0, step, unit != 0, panel);
        }
        for (int64_t row = 0; row < n; ++row)
            for (int64_t j = 0; j < count; ++j) out[of_out.at(batch, row, column + j)] = panel[row * kPanel + j];
    }
}
