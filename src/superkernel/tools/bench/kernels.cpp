// kernels.cpp: the sub-kernels of the suites.
#include <superkernel/kernel.h>
#include <superkernel/tiling.h>

#include <atomic>
#include <cstdint>

// One step of a chain with next to no work: the boundary is all there is. A block owns one cache line.
extern "C" void count_up(const int64_t* x, int64_t* y) { y[8 * sk::block_idx()] = x[8 * sk::block_idx()] + 1; }

// 4 KB in, 4 KB out.
extern "C" void add_1024(const float* __restrict x, const float* __restrict y, float* __restrict z) {
    const int part = 1024 / sk::block_num(), first = part * sk::block_idx();
    for (int i = first; i < first + part; ++i) z[i] = x[i] + y[i];
}

// 256 bytes in and out for each of two blocks.
extern "C" void add_128(const float* __restrict x, const float* __restrict y, float* __restrict z) {
    const int first = 64 * sk::block_idx();
    for (int i = first; i < first + 64; ++i) z[i] = x[i] + y[i];
}

// Work that cannot be split into blocks: every element needs the one before it.
extern "C" void smooth_1024(const float* __restrict x, float* __restrict z) {
    float last = x[0];
    for (int i = 0; i < 1024; ++i) z[i] = last = 0.5f * (last + x[i]);
}

// The bare barrier beside it: a counter and a generation, two blocks that meet `times` times.
struct Meeting {
    alignas(64) std::atomic<int64_t> arrived;
    alignas(64) std::atomic<int64_t> generation;
};

extern "C" void meet(Meeting* meeting, int64_t times) {
    for (int64_t i = 0; i < times; ++i) {
        const int64_t generation = meeting->generation.load(std::memory_order_acquire);
        if (meeting->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == sk::block_num()) {
            meeting->arrived.store(0, std::memory_order_relaxed);
            meeting->generation.store(generation + 1, std::memory_order_release);
        } else {
            while (meeting->generation.load(std::memory_order_acquire) == generation) __builtin_ia32_pause();
        }
    }
}

// Eight buffers, nothing done.
extern "C" void eight(const float*, const float*, const float*, const float*, float*, float*, float*, float* h) {
    if (sk::block_idx() == 0) h[0] += 1;
}

// Reads everything and keeps next to nothing: what the memory allows.
extern "C" void read_all(const float* __restrict x, int64_t n, float* __restrict sums) {
    const int64_t part = n / sk::block_num();
    const float* __restrict mine = x + part * sk::block_idx();
    float sum[128] = {};
    for (int64_t i = 0; i + 128 <= part; i += 128)
        for (int j = 0; j < 128; ++j) sum[j] += mine[i + j];
    for (int j = 0; j < 128; ++j) sums[128 * sk::block_idx() + j] = sum[j];
}

// A decode step of one token, hidden size 512, 2048 inside: what stands between the matmuls is small.
template <int kDepth>
static void gemv(const float* __restrict x, const float* __restrict w, float* __restrict y, int rows) {
    const int first = rows * sk::block_idx() / sk::block_num(), last = rows * (sk::block_idx() + 1) / sk::block_num();
    for (int row = first; row < last; ++row) {
        float sum[64] = {};
        for (int i = 0; i < kDepth; i += 64)
            for (int j = 0; j < 64; ++j) sum[j] += x[i + j] * w[kDepth * row + i + j];
        for (int j = 1; j < 64; ++j) sum[0] += sum[j];
        y[row] = sum[0];
    }
}
extern "C" void gemv_512_512(const float* x, const float* w, float* y) { gemv<512>(x, w, y, 512); }
extern "C" void gemv_512_2048(const float* x, const float* w, float* y) { gemv<512>(x, w, y, 2048); }
extern "C" void gemv_2048_512(const float* x, const float* w, float* y) { gemv<2048>(x, w, y, 512); }
extern "C" void router_512_8(const float* x, const float* w, float* y) { gemv<512>(x, w, y, 8); }

// y = x / rms(x) * g
extern "C" void rms_norm_512(const float* __restrict x, const float* __restrict g, float* __restrict y) {
    float sum[16] = {};
    for (int i = 0; i < 512; i += 16)
        for (int j = 0; j < 16; ++j) sum[j] += x[i + j] * x[i + j];
    for (int j = 1; j < 16; ++j) sum[0] += sum[j];
    const float scale = 1.0f / __builtin_sqrtf(sum[0] / 512 + 1e-6f);
    for (int i = 0; i < 512; ++i) y[i] = x[i] * scale * g[i];
}

// y = x * gate[0]: the weight that the router gave
extern "C" void weigh_2048(const float* __restrict x, const float* __restrict gate, float* __restrict y) {
    const int part = 2048 / sk::block_num(), first = part * sk::block_idx();
    for (int i = first; i < first + part; ++i) y[i] = x[i] / (1.0f + gate[i % 8] * gate[i % 8]);
}

// The tiling of a dynamic op that always runs with all its blocks.
extern "C" int most_blocks(const sk_tiling_args* in, sk_tiling_result* out) {
    out->blocks = in->most_blocks;
    return 0;
}

// What an all_reduce of `n` floats between `ranks` ranks moves, in memory of this process alone, and with no wait:
// publish what other ranks add, add one part of all ranks and store the sums twice, take the other parts.
// `past_caches`: with stores that do not read the line first.
namespace {

typedef float Wide __attribute__((vector_size(32), may_alias));

template <bool PastCaches>
inline void put(Wide* at, Wide value) {
#if defined(__AVX__)
    if (PastCaches) return __builtin_ia32_movntps256(reinterpret_cast<float*>(at), value);
#endif
    *at = value;
}

template <bool PastCaches>
void copy_and_add(const float* x, float* slots, float* sums, float* y, int64_t n, int64_t ranks) {
    const int64_t part = n / ranks / 8, mine = part / sk::block_num(), first = mine * sk::block_idx();
    const auto* from = reinterpret_cast<const Wide*>(x);
    auto* slot = reinterpret_cast<Wide*>(slots);
    auto* sum = reinterpret_cast<Wide*>(sums);
    auto* to = reinterpret_cast<Wide*>(y);
    for (int64_t other = 1; other < ranks; ++other)
        for (int64_t i = other * part + first; i < other * part + first + mine; ++i) put<PastCaches>(slot + i, from[i]);
    for (int64_t i = first; i < first + mine; ++i) {
        Wide total = from[i];
        for (int64_t other = 1; other < ranks; ++other) total += slot[other * part + i];
        put<PastCaches>(sum + i, total);
        put<PastCaches>(to + i, total);
    }
    for (int64_t other = 1; other < ranks; ++other)
        for (int64_t i = other * part + first; i < other * part + first + mine; ++i) put<PastCaches>(to + i, sum[i]);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

}  // namespace

extern "C" void copy_add(const float* x, float* slots, float* sums, float* y, int64_t n, int64_t ranks) {
    copy_and_add<false>(x, slots, sums, y, n, ranks);
}
extern "C" void copy_add_past_caches(const float* x, float* slots, float* sums, float* y, int64_t n, int64_t ranks) {
    copy_and_add<true>(x, slots, sums, y, n, ranks);
}
