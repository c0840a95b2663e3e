// Sub-kernels of the launch tests: each takes the part of its block, 16 elements.
#include <superkernel/host_kernel.h>

namespace {
constexpr int64_t kPart = 16;
}

extern "C" void turn(uint64_t first_slot) {  // y = x with its parts in reverse order, plus one
    auto x = sk::buffer<int32_t>(first_slot, 0), y = sk::buffer<int32_t>(first_slot, 1);
    int32_t part[kPart];
    (x + (sk::block_num() - 1 - sk::block_idx()) * kPart).copy_in(part, kPart);
    for (int32_t& element : part) element += 1;
    (y + sk::block_idx() * kPart).copy_out(part, kPart);
}

extern "C" void mixed(uint64_t first_slot) {  // the same, each vector core of a block with one half of its part
    if (sk::is_cube()) return;
    auto x = sk::buffer<int32_t>(first_slot, 0), y = sk::buffer<int32_t>(first_slot, 1);
    constexpr int64_t half = kPart / 2;
    int32_t part[half];
    int64_t inside = sk::sub_block_idx() * half;
    (x + (sk::block_num() - 1 - sk::block_idx()) * kPart + inside).copy_in(part, half);
    for (int32_t& element : part) element += 1;
    (y + sk::block_idx() * kPart + inside).copy_out(part, half);
}

extern "C" void scale(uint64_t first_slot) {  // y *= f
    auto y = sk::buffer<int32_t>(first_slot, 0);
    int32_t part[kPart], factor = sk::scalar<int32_t>(first_slot, 1);
    (y + sk::block_idx() * kPart).copy_in(part, kPart);
    for (int32_t& element : part) element *= factor;
    (y + sk::block_idx() * kPart).copy_out(part, kPart);
}

extern "C" void add(uint64_t first_slot) {  // z = x + w
    auto x = sk::buffer<int32_t>(first_slot, 0), w = sk::buffer<int32_t>(first_slot, 1);
    int32_t part[kPart], more[kPart];
    int64_t at = sk::block_idx() * kPart;
    (x + at).copy_in(part, kPart);
    (w + at).copy_in(more, kPart);
    for (int64_t i = 0; i < kPart; ++i) part[i] += more[i];
    (sk::buffer<int32_t>(first_slot, 2) + at).copy_out(part, kPart);
}

extern "C" void summed(uint64_t first_slot) {  // y = x, after a barrier over all blocks of the op
    auto x = sk::buffer<int32_t>(first_slot, 0), y = sk::buffer<int32_t>(first_slot, 1);
    int32_t part[kPart];
    sk::sync_all();
    (x + sk::block_idx() * kPart).copy_in(part, kPart);
    (y + sk::block_idx() * kPart).copy_out(part, kPart);
}

extern "C" void beyond(uint64_t first_slot) {  // writes behind the end of y
    int32_t part[kPart] = {};
    (sk::buffer<int32_t>(first_slot, 1) + (sk::block_num() + 1) * kPart).copy_out(part, kPart);
}
