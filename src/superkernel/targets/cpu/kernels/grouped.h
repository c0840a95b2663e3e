// grouped.h: which rows belong to which group.
#pragma once

#include <superkernel/kernel.h>

#include "vector.h"

namespace {

enum class ListKind : int64_t { kAllRows = -1, kEnds = 0, kCounts = 1 };

// The list of a tensor with `rows` rows, for `groups` groups. Without a list there is one group, of all rows.
struct GroupList {
    const int64_t* list;
    ListKind kind;
    int64_t step, groups, rows;

    // Every block calls it before it computes anything.
    SK_INLINE bool fits() const {
        if (kind == ListKind::kAllRows) return true;
        int64_t end = 0;
        bool within = true;
        for (int64_t group = 0; group < groups && within; ++group) {
            const int64_t value = list[group * step];
            if (value < (kind == ListKind::kEnds ? end : 0)) {
                sk::fail("grouped_matmul: group_list gives a group less than no rows");
                return false;
            }
            within = value <= rows - (kind == ListKind::kEnds ? 0 : end);
            end = kind == ListKind::kEnds ? value : end + value;
        }
        if (within && end == rows) return true;
        sk::fail("grouped_matmul: group_list does not add up to the rows of x");
        return false;
    }

    SK_INLINE int64_t begin_of(int64_t group) const {
        if (kind == ListKind::kAllRows || group == 0) return 0;
        return kind == ListKind::kEnds ? list[(group - 1) * step] : end_of(group - 1);
    }
    SK_INLINE int64_t end_of(int64_t group) const {
        if (kind == ListKind::kAllRows) return rows;
        if (kind == ListKind::kEnds) return list[group * step];
        int64_t end = 0;
        for (int64_t i = 0; i <= group; ++i) end += list[i * step];
        return end;
    }
};

}  // namespace

#define SK_GROUPS                                                                                                   \
    const int64_t *list, ListKind list_kind, int64_t list_step, int64_t groups, int64_t first_group, int64_t count, \
        int64_t rows, int64_t n, int64_t k
#define SK_GROUPED_STRIDES                                                                                       \
    int64_t x_row, int64_t x_column, int64_t weight_group, int64_t weight_row, int64_t weight_column, int64_t out_row
