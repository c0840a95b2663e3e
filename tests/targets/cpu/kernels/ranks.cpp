// ranks.cpp: sub-kernels of collectives for tests: one stores into the slot of its rank, the others read all slots.
#include <superkernel/kernel.h>
#include <superkernel/window.h>

#include <cstdint>

namespace {
// the elements of the running block
struct Share {
    int64_t first, last;
    explicit Share(int64_t count)
        : first(count * sk::block_idx() / sk::block_num()), last(count * (sk::block_idx() + 1) / sk::block_num()) {}
};
}  // namespace

extern "C" void publish(const int64_t* x, void* window, int64_t count, int64_t rank, int64_t ranks, int64_t stride) {
    const uint32_t round = sk::round_of(window, uint32_t(rank));
    auto* const slot = reinterpret_cast<int64_t*>(sk::slot(window, uint32_t(ranks), uint64_t(stride), round, uint32_t(rank)));
    const Share share(count);
    for (int64_t i = share.first; i < share.last; ++i) slot[i] = x[i];
}

// Mixes all slots in an order that matters; block b reads the elements of another block.
extern "C" void collect(const void* window, int64_t* y, int64_t count, int64_t rank, int64_t ranks, int64_t stride) {
    const uint32_t round = sk::round_of(window, uint32_t(rank));
    const Share share(count);
    for (int64_t i = share.first; i < share.last; ++i) {
        int64_t mixed = 0;
        for (int64_t other = 0; other < ranks; ++other) {
            const char* const slot = sk::slot(window, uint32_t(ranks), uint64_t(stride), round, uint32_t(other));
            mixed = mixed * 31 + reinterpret_cast<const int64_t*>(slot)[count - 1 - i];
        }
        y[i] = mixed;
    }
}

// Reads all slots of one window, stores into its slot of a second one.
extern "C" void pass_on(const void* first, void* second, int64_t count, int64_t rank, int64_t ranks, int64_t stride) {
    const uint32_t round = sk::round_of(first, uint32_t(rank));
    auto* const slot = reinterpret_cast<int64_t*>(sk::slot(second, uint32_t(ranks), uint64_t(stride), round, uint32_t(rank)));
    const Share share(count);
    for (int64_t i = share.first; i < share.last; ++i) {
        int64_t mixed = rank;
        for (int64_t other = 0; other < ranks; ++other) {
            const char* const from = sk::slot(first, uint32_t(ranks), uint64_t(stride), round, uint32_t(other));
            mixed = mixed * 31 + reinterpret_cast<const int64_t*>(from)[count - 1 - i];
        }
        slot[i] = mixed;
    }
}

extern "C" void step(const int64_t* x, const int64_t* y, int64_t* z, int64_t count) {
    const Share share(count);
    for (int64_t i = share.first; i < share.last; ++i) z[i] = 3 * x[i] + y[count - 1 - i] + i;
}
