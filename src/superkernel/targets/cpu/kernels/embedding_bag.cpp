// embedding_bag.cpp: rows of a table, summed, averaged or compared by bags of indices: aten::_embedding_bag.
//
// Compiled with SK_ELEMENT, the element type, and SK_INDEX, that of indices and offsets. Blocks divide bags. Sums are
// taken in the order of the indices.
#include "block_share.h"
#include "numbers.h"

namespace {

using Element = SK_ELEMENT;
using Index = SK_INDEX;
using Number = Kind<Element>::Number;

enum Mode : int64_t { kSum = 0, kMean = 1, kMax = 2 };
constexpr int64_t kColumns = 256;  // of a row, at a time

struct Bag {
    int64_t begin, end;
};

}  // namespace

// Results that training needs, the bag of each index, the size of each bag and the row of each maximum, are written where
// they have elements.
extern "C" void embedding_bag(const Element* weight, const Index* indices, const Index* offsets, const Element* factors,
                              Element* out, Index* bag_of_index, Index* bag_sizes, Index* max_rows, int64_t rows,
                              int64_t columns, int64_t count, int64_t bags, int64_t offset_count, int64_t mode,
                              int64_t has_factors, int64_t padding, int64_t writes_bags, int64_t writes_max,
                              int64_t weight_row) {
    const Range share = block_share(bags);
    for (int64_t index = share.begin; index < share.end; ++index) {
        const Bag bag{int64_t(offsets[index]), index + 1 < offset_count ? int64_t(offsets[index + 1]) : count};
        if (bag.begin < 0 || bag.end > count || bag.begin > bag.end)
            return sk::fail("embedding_bag: an offset is outside of the indices, or less than the one before");
        int64_t members = 0;
        for (int64_t i = bag.begin; i < bag.end; ++i) {
            if (indices[i] < 0 || indices[i] >= rows) return sk::fail("embedding_bag: an index is outside of the table");
            if (writes_bags) bag_of_index[i] = Index(index);
            members += indices[i] != padding;
        }
        bag_sizes[index] = Index(members);
        for (int64_t first = 0; first < columns; first += kColumns) {
            const int64_t width = columns - first < kColumns ? columns - first : kColumns;
            Number total[kColumns] = {};
            Index best[kColumns] = {};
            bool is_first = true;
            for (int64_t i = bag.begin; i < bag.end; ++i) {
                if (indices[i] == padding) continue;
                const Element* row = weight + indices[i] * weight_row + first;
                if (mode == kMax) {
                    for (int64_t j = 0; j < width; ++j) {
                        const Number next = number(row[j]);
                        if (is_first || next > total[j]) total[j] = next, best[j] = indices[i];
                    }
                } else {
                    const Number factor = has_factors ? number(factors[i]) : Number(1);
                    for (int64_t j = 0; j < width; ++j) total[j] += factor * number(row[j]);
                }
                is_first = false;
            }
            const Number divisor = mode == kMean && members > 0 ? Number(members) : Number(1);
            for (int64_t j = 0; j < width; ++j) put(total[j] / divisor, out[index * columns + first + j]);
            if (writes_max)
                for (int64_t j = 0; j < width; ++j) max_rows[index * columns + first + j] = best[j];
        }
    }
}
