// panels.h: matmul of 12 or 24 rows (a batch of tokens): register tiles of 12 rows and two vectors of columns.
//
// Weights that are known ahead are stored in panels: kPanelWidth columns, row after row of b, the last panel filled
// with zeros; they are read once, from beginning to end. Otherwise b, which is contiguous along k, is transposed in
// registers on the way to the tile, or packed as a panel where a machine has too few of them. That takes as long as dot
// products where the rows fill the tiles, and longer elsewhere: other numbers of rows are not computed so.
// The sum of an output element is always taken one product after the other, so all ways give the same bits.
#pragma once

#include "skinny.h"
#include "tiles.h"

namespace {

constexpr int64_t kPanelWidth = 32;       // on every machine, so that stored weights serve all
constexpr int64_t kPanelRowUnit = 12;     // rows of a: a multiple of it, on every machine
constexpr int64_t kPanelDepth = 256;      // of a panel that is packed here
constexpr int64_t kPanelElements = 65536;  // of a that the scratch memory holds
constexpr int64_t kPanelPrefetch = 2048;  // elements of stored panels that are prefetched before a is available
constexpr int64_t kRowBlock = 16;         // elements of a row of a side by side, then those of the next row of its tile
constexpr int kPanelVectors = kRegisters == 32 && kLanes == 4 ? 4 : 2;  // of a register tile,
constexpr int kPanelRows = kRegisters == 32 && kLanes > 4 ? 12 : 6;     // and its rows
constexpr bool kTransposesPanels = kLanes == kRowBlock;

struct PanelScratch {
    alignas(64) float a[kPanelElements];
    alignas(64) float panel[kTransposesPanels ? kLanes : kPanelWidth * kPanelDepth];
    alignas(64) float sums[kSkinnyRows * kPanelWidth];
};

// Some columns of one batch, and the depth that is multiplied at a time.
struct PanelPart {
    const float *a, *b;  // the blocks of a group of rows; a panel, or the first column
    float* sums;         // of the group, kPanelWidth apart
    int64_t depth, ldb;
    int64_t batch, row, column, columns;
    bool first, last;  // of the parts of k
    bool direct;       // results are stored by whole vectors, without `finish`
    bool prefetches;   // the columns behind these: the hardware prefetcher starts anew in every column
};

template <int R, int Vectors>
SK_INLINE void load_sums(const PanelPart& part, Vector (&total)[R][Vectors]) {
    SK_UNROLL
    for (int r = 0; r < R; ++r) {
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v)
            total[r][v] = part.first ? Vector{} : load(part.sums + r * kPanelWidth + v * kLanes);
    }
}

// Stores sums, or results as `finish` makes them.
template <int R, int Vectors>
SK_INLINE void store_sums(const Problem<float>& p, const PanelPart& part, const Vector (&total)[R][Vectors]) {
    if (!(part.last && part.direct)) {
        SK_UNROLL
        for (int r = 0; r < R; ++r) {
            SK_UNROLL
            for (int v = 0; v < Vectors; ++v) store(part.sums + r * kPanelWidth + v * kLanes, total[r][v]);
        }
        return;
    }
    const Vector alpha = broadcast(p.alpha);
    float* out = p.out + p.of_out.at(part.batch, part.row, part.column);
    const float* c = p.c == nullptr ? nullptr : p.c + p.of_c.at(part.batch, part.row, part.column);
    SK_UNROLL
    for (int r = 0; r < R; ++r) {
        SK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            Vector result = total[r][v] * alpha;
            if (c != nullptr)
                result = multiply_add(alpha, total[r][v], load(c + r * p.of_c.row + v * kLanes) * p.beta);
            store(out + r * p.of_out.row + v * kLanes, result);
        }
    }
}

// R rows of a times Vectors vectors of columns of a panel.
template <int R, int Vectors>
SK_NOINLINE void panel_tile(const Problem<float>& p, const PanelPart& part) {
    Vector total[R][Vectors];
    load_sums(part, total);
    const float *a = part.a, *b = part.b;
    for (int64_t left = part.depth; left > 0; left -= kRowBlock, a += (R - 1) * kRowBlock) {
        for (const float* end = a + least(kRowBlock, left); a < end; ++a, b += kPanelWidth) {
            Vector columns[Vectors];
            SK_UNROLL
            for (int v = 0; v < Vectors; ++v) {
                columns[v] = load(b + v * kLanes);
                pin_register(columns[v]);
            }
            SK_UNROLL
            for (int r = 0; r < R; ++r) {
                const Vector factor = broadcast(a[r * kRowBlock]);
                SK_UNROLL
                for (int v = 0; v < Vectors; ++v) total[r][v] = multiply_add(factor, columns[v], total[r][v]);
            }
        }
    }
    store_sums(p, part, total);
}

// R rows of a times up to kLanes columns of b, each contiguous. What the last block of k lacks is zero in a and b.
template <int R>
SK_NOINLINE void transposed_tile(const Problem<float>& p, const PanelPart& part) {
    Vector total[R][1];
    load_sums(part, total);
    const float *a = part.a, *b = part.b;
    for (int64_t left = part.depth; left > 0; left -= kLanes, a += R * kRowBlock, b += kLanes) {
        Vector block[kLanes];
        if (left >= kLanes && part.columns >= kLanes) {
            SK_UNROLL
            for (int c = 0; c < kLanes; ++c) {
                block[c] = load(b + c * part.ldb);
                if (part.prefetches) __builtin_prefetch(b + (kLanes + c) * part.ldb, 0, 2);
            }
        } else {
            SK_UNROLL
            for (int c = 0; c < kLanes; ++c)
                block[c] = load_partial(b + least(c, part.columns - 1) * part.ldb, least(kLanes, left));
        }
        transpose(block);
        SK_UNROLL
        for (int i = 0; i < kLanes; ++i) {
            SK_UNROLL
            for (int r = 0; r < R; ++r)
                total[r][0] = multiply_add(broadcast(a[r * kRowBlock + i]), block[i], total[r][0]);
        }
    }
    store_sums(p, part, total);
}

// Which tile multiplies a part: of a panel, of half a panel, or of columns of b.
enum class PanelTile { kWhole, kHalf, kTransposed };

SK_INLINE void multiply_part(const Problem<float>& p, const PanelPart& part, PanelTile tile) {
    constexpr int rows = kPanelRows;
    if (kTransposesPanels && tile == PanelTile::kTransposed) return transposed_tile<kTransposesPanels ? rows : 1>(p, part);
    if (kTransposesPanels && tile == PanelTile::kHalf)
        return panel_tile<rows, kTransposesPanels ? 1 : kPanelVectors>(p, part);
    panel_tile<rows, kPanelVectors>(p, part);
}

// Whether a problem is computed so. That decides the order of sums: it depends on sizes alone, and matmul.py knows it.
SK_INLINE bool uses_panels(const Problem<float>& p, Along along) {
    return along == Along::kDepth && p.m % kPanelRowUnit == 0 && p.m <= kSkinnyRows && p.n > kSkinnyRows;
}
template <class T>
SK_INLINE bool uses_panels(const Problem<T>&, Along) {
    return false;  // half as many bytes: dot products read them in place
}

// The rows of each tile, in blocks; zeros fill the last block.
SK_NOINLINE void gather_blocks(const Problem<float>& p, int64_t batch, int64_t k, int64_t depth, float* to) {
    const float* from = p.a + p.of_a.at(batch, 0, k);
    for (int64_t row = 0; row < p.m; ++row, from += p.of_a.row) {
        float* at = to + row / kPanelRows * kPanelRows * round_up(depth, kRowBlock) + row % kPanelRows * kRowBlock;
        for (int64_t i = 0; i < depth; i += kRowBlock, at += kPanelRows * kRowBlock) {
            if (p.of_a.column == 1 && i + kRowBlock <= depth) {
                SK_UNROLL
                for (int64_t j = 0; j < kRowBlock; j += kLanes) store(at + j, load(from + i + j));
            } else {
                for (int64_t j = 0; j < kRowBlock; ++j) at[j] = i + j < depth ? from[(i + j) * p.of_a.column] : 0;
            }
        }
    }
}

// What of a is in the scratch memory.
struct HeldRows {
    int64_t batch = -1, begin = -1, depth = 0;
};

// All rows times the columns of a tile, from the row `k` of b on. `ahead`: more columns follow.
SK_INLINE void panel_columns(const Problem<float>& p, const HeldRows& held, int64_t k, PanelPart part, PanelTile tile,
                             bool ahead, PanelScratch& scratch) {
    for (part.row = 0; part.row < p.m; part.row += kPanelRows) {
        part.a = scratch.a + part.row * round_up(held.depth, kRowBlock) + kPanelRows * (k - held.begin);
        part.sums = scratch.sums + part.row * kPanelWidth;
        part.prefetches = part.row == 0 && ahead;
        multiply_part(p, part, tile);
    }
    if (part.last && !part.direct) finish(p, part.batch, 0, part.column, p.m, part.columns, scratch.sums, kPanelWidth);
}

// Columns [begin, end) of one batch. `stored`: b is in panels.
SK_NOINLINE void panel_batch(const Problem<float>& p, int64_t batch, Range columns, bool stored, HeldRows& held,
                             PanelScratch& scratch) {
    const bool plain = p.of_out.column == 1 && (p.c == nullptr || p.of_c.column == 1);
    const bool packs = !stored && !kTransposesPanels;
    const int64_t most = least(kPanelElements / p.m / kRowBlock * kRowBlock, p.k);
    const int64_t panels = divide_up(p.n, kPanelWidth);
    int64_t width;
    for (int64_t column = columns.begin; column < columns.end; column += width) {
        const int64_t in_panel = column % kPanelWidth;
        const bool halved = kTransposesPanels && (in_panel != 0 || columns.end - column <= kLanes);
        const PanelTile tile = !stored && kTransposesPanels ? PanelTile::kTransposed
                               : halved                     ? PanelTile::kHalf
                                                            : PanelTile::kWhole;
        width = tile == PanelTile::kWhole ? kPanelVectors * kLanes : kLanes;
        PanelPart part;
        part.batch = batch;
        part.column = column;
        part.columns = least(width, columns.end - column);
        part.direct = plain && part.columns == width;
        part.ldb = p.of_b.column;
        for (int64_t k = 0; k < p.k; k += part.depth) {
            const int64_t begin = k / most * most, depth = least(most, p.k - begin);
            if (held.batch != batch || held.begin != begin) {
                gather_blocks(p, batch, begin, depth, scratch.a);
                held = {batch, begin, depth};
            }
            part.depth = least(begin + depth - k, packs ? kPanelDepth : depth);
            part.first = k == 0;
            part.last = k + part.depth == p.k;
            part.b = p.b + p.of_b.at(batch, k, column);
            if (stored) part.b = p.b + ((batch * panels + column / kPanelWidth) * p.k + k) * kPanelWidth + in_panel;
            if (packs) {
                pack_panel<kPanelWidth>(part.b, p.of_b.row, p.of_b.column, part.depth, part.columns, scratch.panel);
                part.b = scratch.panel;
            }
            panel_columns(p, held, k, part, tile, column + 2 * kLanes <= columns.end, scratch);
        }
    }
}

// This block's share: columns, and batches of columns.
SK_NOINLINE void panel_matmul(const Problem<float>& p, bool stored) {
    PanelScratch scratch;
    HeldRows held;
    const int64_t granules = divide_up(p.n, kGranule);
    const Range units = block_share(p.batches * granules);
    for (int64_t unit = units.begin; unit < units.end;) {
        const int64_t batch = unit / granules, first = unit % granules;
        const int64_t count = least(granules - first, units.end - unit);
        panel_batch(p, batch, {first * kGranule, least((first + count) * kGranule, p.n)}, stored, held, scratch);
        unit += count;
    }
}
template <class T>
SK_INLINE void panel_matmul(const Problem<T>&, bool) {}

// Prefetches the first stored panels that this block reads, while other cores still compute a.
SK_INLINE void prefetch_panels(const Problem<float>& p) {
    const int64_t granules = divide_up(p.n, kGranule), panels = divide_up(p.n, kPanelWidth);
    const Range units = block_share(p.batches * granules);
    if (units.begin == units.end) return;
    const int64_t first = units.begin / granules * panels + units.begin % granules * kGranule / kPanelWidth;
    prefetch(p.b + first * kPanelWidth * p.k, least(kPanelPrefetch, (p.batches * panels - first) * kPanelWidth * p.k));
}

}  // namespace
