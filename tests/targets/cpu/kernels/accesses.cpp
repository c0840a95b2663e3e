// accesses.cpp: one kernel whose mistake is chosen by a scalar, for the checks of debug-check=1.
#include <stdint.h>
#include <string.h>
#include <superkernel/kernel.h>

#include <algorithm>
#include <atomic>

namespace {

constexpr int N = 48;
struct Four {
    int64_t number[4];
};
using Vector = int64_t __attribute__((vector_size(32), aligned(8)));

enum Mistake {
    kNone, kReadBehind, kReadBefore, kReadOtherPart, kWriteInput, kWriteBehind, kWriteOtherPart, kReadOutput,
    kReadWorkspace, kCopyBehind, kSetBehind, kStructBehind, kVectorBehind, kByteBehind, kAtomicInput, kFarAway, kStdCopy,
    kFurtherAway, kFarBefore,
};

}  // namespace

extern "C" {

// z = x + 1 by way of w; each block on its part
void part(const int64_t* x, int64_t* z, int64_t* w, int64_t mistake) {
    const int count = N / sk::block_num(), first = count * sk::block_idx(), last = first + count;
    for (int i = first; i < last; ++i) w[i] = x[i] + 1;
    for (int i = first; i < last; ++i) z[i] = w[i];
    if (sk::block_idx() != 1) return;
    volatile int64_t sink = 0;
    switch (mistake) {
        case kReadBehind: sink = x[N]; break;
        case kReadBefore: sink = x[-1]; break;
        case kReadOtherPart: sink = x[first - 1]; break;
        case kWriteInput: const_cast<int64_t*>(x)[first + 2] = 5; break;
        case kWriteBehind: z[N] = 5; break;
        case kWriteOtherPart: z[0] = 5; break;
        case kCopyBehind: memcpy(z + N - 2, w + N - 2, 3 * sizeof *z); break;
        case kSetBehind: memset(z + N - 2, 0, 17); break;
        case kStructBehind: reinterpret_cast<Four*>(z + N - 3)[0] = Four{{1, 2, 3, 4}}; break;
        case kVectorBehind: *reinterpret_cast<Vector*>(z + N - 3) = Vector{1, 2, 3, 4}; break;
        case kByteBehind: reinterpret_cast<char*>(z)[8 * N] = 1; break;
        case kAtomicInput: __atomic_fetch_add(const_cast<int64_t*>(x) + first, 1, __ATOMIC_RELAXED); break;
        case kFarAway: sink = x[20000]; break;
        case kFurtherAway: sink = x[int64_t(1) << 31]; break;
        case kFarBefore: z[-(int64_t(1) << 31)] = 5; break;
        case kStdCopy: std::copy(w + N - 4, w + N, z + N - 3); break;
        default: break;
    }
    (void)sink;
}

// reads its output, or its workspace, before it has written it
void unwritten(const int64_t* x, int64_t* z, int64_t* w, int64_t mistake) {
    const int count = N / sk::block_num(), first = count * sk::block_idx(), last = first + count;
    for (int i = first; i < last; ++i) {
        if (mistake == kReadOutput && i == first + 3) z[i] += 1;
        if (mistake == kReadWorkspace && i == first + 3) w[i] += 1;
        w[i] = x[i];
        z[i] = w[i] + 1;
    }
    for (int i = first; i < last; ++i) z[i] += 1;  // its own
}

// reads w, then waits, then reads x; says when it is done
void early(const int64_t* x, int64_t* z, const int64_t* w, int64_t mistake) {
    const int count = N / sk::block_num(), first = count * sk::block_idx(), last = first + count;
    int64_t sum = w[first];
    if (mistake == 1) sum += x[first];
    if (mistake == 2) z[first] = 3;
    sk::wait_previous();
    for (int i = first; i < last; ++i) z[i] = x[i] + sum;
    sk::set_next();
    if (mistake == 3) z[first] = 4;
}

// has no mistake
void next(const int64_t* x, int64_t* z) {
    const int count = N / sk::block_num(), first = count * sk::block_idx(), last = first + count;
    for (int i = first; i < last; ++i) z[i] = x[N - 1 - i] + 1;
}
}
