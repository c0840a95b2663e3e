// y = 2 x + 1: ops between the collectives of emulated ranks.
#include <superkernel/host_kernel.h>

template <class T>
static void step(uint64_t first_slot) {
    auto x = sk::buffer<T>(first_slot, 0), y = sk::buffer<T>(first_slot, 1);
    auto count = sk::scalar<int64_t>(first_slot, 2);
    int64_t units = (count + 7) / 8, blocks = sk::block_num(), block = sk::block_idx();
    T local[8];
    for (int64_t unit = units * block / blocks; unit < units * (block + 1) / blocks; ++unit) {
        int64_t elements = count - unit * 8 < 8 ? count - unit * 8 : 8;
        (x + unit * 8).copy_in(local, elements);
        for (T& element : local) element = T(2 * element + 1);
        (y + unit * 8).copy_out(local, elements);
    }
}

extern "C" void step_float32(uint64_t first_slot) { step<float>(first_slot); }
extern "C" void step_int32(uint64_t first_slot) { step<int32_t>(first_slot); }
extern "C" void step_int64(uint64_t first_slot) { step<int64_t>(first_slot); }

// x, window, rank: stores x into the slot of a rank
extern "C" void put(uint64_t first_slot) {
    float local[16];
    sk::buffer<float>(first_slot, 0).copy_in(local, 16);
    (sk::buffer<float>(first_slot, 1) + sk::scalar<int64_t>(first_slot, 2) * 128).copy_out(local, 16);
}

// the same, and reads the slot of the other rank
extern "C" void put_and_look(uint64_t first_slot) {
    float local[16];
    (sk::buffer<float>(first_slot, 1) + (1 - sk::scalar<int64_t>(first_slot, 2)) * 128).copy_in(local, 16);
    put(first_slot);
}
