// Sub-kernels as they are written for the chip: subkernel.h alone tells them when they may read and who is done.
// y = x with its parts in reverse order, plus one.
#include "kernel_operator.h"
#include <superkernel/subkernel.h>

namespace {
constexpr int64_t kPart = 32;  // elements of a block

void turn(uint64_t slot, int source, int target) {
    if (sk::sub_block_num() > 1 && sk::is_cube()) return;  // of a 1:2 op the vector cores do the work
    int64_t count = kPart / sk::sub_block_num(), inside = sk::sub_block_idx() * count;
    int32_t local[kPart];
    int64_t from = (sk::block_num() - 1 - sk::block_idx()) * kPart + inside;
    (sk::buffer<int32_t>(slot, source) + from).copy_in(local, count);
    for (int64_t i = 0; i < count; ++i) local[i] += 1;
    (sk::buffer<int32_t>(slot, target) + sk::block_idx() * kPart + inside).copy_out(local, count);
}
}  // namespace

extern "C" __aicore__ void early(uint64_t first_slot) {
    sk::work(30);
    sk_wait_previous();
    turn(first_slot, 0, 1);
    sk_set_next();
    sk::work(30);
}

extern "C" __aicore__ void meets(uint64_t first_slot) {
    turn(first_slot, 0, 2);
    sk_sync_all();
    turn(first_slot, 2, 1);
    sk_sync_all();
}

extern "C" __aicore__ void meets_mixed(uint64_t first_slot) {
    turn(first_slot, 0, 2);
    sk_sync_all<true>();
    turn(first_slot, 2, 1);
    sk_sync_all<true>();
}

extern "C" __aicore__ void meets_both_kinds(uint64_t first_slot) {
    turn(first_slot, 0, 2);
    if (!sk::is_cube()) sk_sync_all();  // the vector cores among themselves
    turn(first_slot, 2, 1);
    sk_sync_all<true>();
}
