// The sub-kernels of 04_ascend_emit.py: pow, isinf and four adds, as host code for the emulated chip.
// Each block has an equal part of the elements; parts come in and go out in tiles, as through a core's local memory.
#include <superkernel/host_kernel.h>

#include <cmath>

namespace {

constexpr int64_t kElements = 7680, kTile = 64;

struct Part {
    int64_t begin, end;
};
Part part() {
    int64_t size = kElements / sk::block_num();
    return {sk::block_idx() * size, (sk::block_idx() + 1) * size};
}

void add(uint64_t first_slot) {
    auto x = sk::buffer<float>(first_slot, 0), y = sk::buffer<float>(first_slot, 1), z = sk::buffer<float>(first_slot, 2);
    auto [begin, end] = part();
    float left[kTile], right[kTile];
    for (int64_t at = begin; at < end; at += kTile) {
        int64_t count = end - at < kTile ? end - at : kTile;
        (x + at).copy_in(left, count);
        (y + at).copy_in(right, count);
        sk::work(20);
        for (int64_t i = 0; i < count; ++i) left[i] += right[i];
        (z + at).copy_out(left, count);
    }
}

}  // namespace

extern "C" {

void pow_kernel(uint64_t first_slot) {  // in1 to the power of in2, for positive in1; two passes, through a workspace
    auto in1 = sk::buffer<float>(first_slot, 0), in2 = sk::buffer<float>(first_slot, 1);
    auto out1 = sk::buffer<float>(first_slot, 2);
    auto ws = sk::buffer<double>(first_slot, 3);
    auto [begin, end] = part();
    float base[kTile], exponent[kTile];
    double product[kTile];
    for (int64_t at = begin; at < end; at += kTile) {
        int64_t count = end - at < kTile ? end - at : kTile;
        (in1 + at).copy_in(base, count);
        (in2 + at).copy_in(exponent, count);
        for (int64_t i = 0; i < count; ++i) product[i] = exponent[i] * std::log2(double(base[i]));
        (ws + at).copy_out(product, count);
    }
    sk::pipe_barrier();
    for (int64_t at = begin; at < end; at += kTile) {
        int64_t count = end - at < kTile ? end - at : kTile;
        (ws + at).copy_in(product, count);
        for (int64_t i = 0; i < count; ++i) base[i] = float(std::exp2(product[i]));
        (out1 + at).copy_out(base, count);
    }
}

void isinf_kernel(uint64_t first_slot) {
    auto in1 = sk::buffer<float>(first_slot, 0);
    auto out1 = sk::buffer<bool>(first_slot, 1);
    auto [begin, end] = part();
    float value[kTile];
    bool infinite[kTile];
    for (int64_t at = begin; at < end; at += kTile) {
        int64_t count = end - at < kTile ? end - at : kTile;
        (in1 + at).copy_in(value, count);
        for (int64_t i = 0; i < count; ++i) infinite[i] = std::isinf(value[i]);
        (out1 + at).copy_out(infinite, count);
    }
}

void add_100(uint64_t first_slot) { add(first_slot); }
void add_200(uint64_t first_slot) { add(first_slot); }
void add_300(uint64_t first_slot) { add(first_slot); }
void add_400(uint64_t first_slot) { add(first_slot); }
}
