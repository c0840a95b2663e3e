// streaming_gemv.cu: weights [rows, columns] and 1 to 8 activation vectors -> their products, at the speed of the memory.
//
// Every warp has a ring of chunks in shared memory, filled by bulk asynchronous copies, one mbarrier per chunk. The ring
// is filled before the wait point, so that weights are in flight while earlier ops finish; activations are read after it.
// A warp sums whole rows in a fixed order: the result has the same bits in a launch of its own and in a super kernel.
// The PTX beside this file is written by tools/write_ptx.py.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

extern __shared__ __align__(1024) u8 gemv_shared[];

namespace {

constexpr int kLanes = 32;
constexpr int kWarps = 8;
constexpr int kThreads = kLanes * kWarps;
constexpr int kChunkBytes = 4096;
constexpr int kVectorBytes = 16;  // that a lane reads of a chunk at once

enum class Activation : int { float32 = 0, bfloat16 = 1, float16 = 2 };

__device__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// mbarriers and copies

__device__ void init_barrier(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

__device__ void invalidate_barrier(u32 barrier) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ void arrive(u32 barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

__device__ void wait_for(u32 barrier, u32 parity) {
    u32 done = 0;
    while (!done) {
        asm volatile(
            "{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.b32 %0, 1, 0, done; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    }
}

__device__ void copy_chunk(u32 destination, const u8* source, u32 bytes, u32 barrier, u64 policy) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            destination),
        "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

__device__ void prefetch_chunk(const u8* source, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(source)), "r"(bytes)
                 : "memory");
}

__device__ u64 read_once_policy() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// values

__device__ float from_half(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(bits)));
    return value;
}

__device__ u16 to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ u16 to_bfloat(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

struct Bfloat16 {
    static constexpr int bytes = 2;
    __device__ static void unpack(u32 word, float* values) {
        values[0] = __uint_as_float(word << 16);
        values[1] = __uint_as_float(word & 0xffff0000u);
    }
};

struct Float16 {
    static constexpr int bytes = 2;
    __device__ static void unpack(u32 word, float* values) {
        values[0] = from_half(word & 0xffffu);
        values[1] = from_half(word >> 16);
    }
};

struct Int8 {
    static constexpr int bytes = 1;
    // 2^23 + (byte + 128) is the float whose low mantissa byte is byte + 128
    __device__ static void unpack(u32 word, float* values) {
        const u32 shifted = word ^ 0x80808080u;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            values[i] = __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7440u + i)) - 8388736.0f;
        }
    }
};

// What a warp reads of a matrix, chunk by chunk: panels of columns, in each groups of Rows rows, in each parts of the
// rows, in each part the rows of the group. Row i of the warp is row first + i * step of the matrix.
template <typename Weight, int Rows>
struct ChunkCursor {
    static constexpr int kColumns = kChunkBytes / Weight::bytes;

    const u8* matrix;
    int columns, panel_columns;
    int first, step, count, groups;
    int panel = 0, group = 0, column = 0, row = 0;

    __device__ ChunkCursor(const u8* matrix, int rows, int columns, int panel_columns)
        : matrix(matrix), columns(columns), panel_columns(panel_columns) {
        first = blockIdx.x + gridDim.x * (threadIdx.x / kLanes);
        step = gridDim.x * kWarps;
        count = first < rows ? (rows - first + step - 1) / step : 0;
        groups = (count + Rows - 1) / Rows;
        panel = count ? 0 : columns;
    }

    __device__ int panel_end() const { return min(columns, panel + panel_columns); }
    __device__ bool done() const { return panel >= columns; }
    __device__ bool has_row() const { return group * Rows + row < count; }
    __device__ u32 bytes() const { return min(kColumns, panel_end() - column) * Weight::bytes; }
    __device__ const u8* address() const {
        const u64 matrix_row = first + static_cast<u64>(group * Rows + row) * step;
        return matrix + (matrix_row * columns + column) * Weight::bytes;
    }

    __device__ void advance() {
        if (++row < Rows) return;
        row = 0;
        column += kColumns;
        if (column < panel_end()) return;
        if (++group == groups) {
            group = 0;
            panel += panel_columns;
        }
        column = panel;
    }
};

// Activations lie in shared memory as float32, in the order in which lanes read them: 4 of a lane, then 4 of the next.
template <typename Weight>
__device__ int staged_index(int column) {
    constexpr int vector = kVectorBytes / Weight::bytes, span = kLanes * vector;
    const int within = column % span;
    return column - within + (within % vector) / 4 * (4 * kLanes) + within / vector * 4;
}

__device__ float4 load_activations(const void* x, u64 index, Activation type) {
    if (type == Activation::float32) return *reinterpret_cast<const float4*>(static_cast<const float*>(x) + index);
    const uint2 packed = *reinterpret_cast<const uint2*>(static_cast<const u16*>(x) + index);
    float4 values;
    if (type == Activation::bfloat16) {
        Bfloat16::unpack(packed.x, &values.x);
        Bfloat16::unpack(packed.y, &values.z);
    } else {
        Float16::unpack(packed.x, &values.x);
        Float16::unpack(packed.y, &values.z);
    }
    return values;
}

template <typename Weight>
__device__ void stage_activations(float* staged, const void* x, int batch, int columns, int begin, int end,
                                  int panel_columns, Activation type) {
    constexpr int kTogether = 4;  // loads in flight per thread
    const int quads = (end - begin) / 4;
    for (int m = 0; m < batch; ++m) {
        for (int quad = threadIdx.x; quad < quads; quad += kTogether * kThreads) {
            float4 values[kTogether];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int at = quad + i * kThreads;
                if (at < quads) values[i] = load_activations(x, static_cast<u64>(m) * columns + begin + 4 * at, type);
            }
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int at = quad + i * kThreads;
                if (at < quads) {
                    *reinterpret_cast<float4*>(staged + m * panel_columns + staged_index<Weight>(4 * at)) = values[i];
                }
            }
        }
    }
}

__device__ void store_result(void* y, u64 index, float value, Activation type) {
    if (type == Activation::float32) {
        static_cast<float*>(y)[index] = value;
    } else {
        static_cast<u16*>(y)[index] = type == Activation::bfloat16 ? to_bfloat(value) : to_half(value);
    }
}

// Adds the products of Rows chunks with the activations of Batch vectors, lane by lane.
template <typename Weight, int Batch, int Rows>
__device__ void add_products(float (&sums)[Rows][Batch], const u8* (&chunks)[Rows], const float* staged,
                             int panel_columns, int columns, int lane) {
    constexpr int vector = kVectorBytes / Weight::bytes, words = 4, per_word = vector / words, span = kLanes * vector;
    const int steps = (columns + span - 1) / span;
#pragma unroll(Batch == 1 ? 2 : 1)
    for (int step = 0; step < steps; ++step) {
        if (step * span + lane * vector >= columns) break;
        float weights[Rows][vector];
#pragma unroll
        for (int row = 0; row < Rows; ++row) {
            const uint4 packed =
                *reinterpret_cast<const uint4*>(chunks[row] + (step * kLanes + lane) * kVectorBytes);
            Weight::unpack(packed.x, weights[row]);
            Weight::unpack(packed.y, weights[row] + per_word);
            Weight::unpack(packed.z, weights[row] + 2 * per_word);
            Weight::unpack(packed.w, weights[row] + 3 * per_word);
        }
#pragma unroll
        for (int m = 0; m < Batch; ++m) {
            const float* activations = staged + m * panel_columns + step * span + 4 * lane;
#pragma unroll
            for (int quad = 0; quad < vector / 4; ++quad) {
                const float4 x = *reinterpret_cast<const float4*>(activations + quad * 4 * kLanes);
#pragma unroll
                for (int row = 0; row < Rows; ++row) {
                    const float* w = weights[row] + 4 * quad;
                    sums[row][m] = fmaf(w[0], x.x, sums[row][m]);
                    sums[row][m] = fmaf(w[1], x.y, sums[row][m]);
                    sums[row][m] = fmaf(w[2], x.z, sums[row][m]);
                    sums[row][m] = fmaf(w[3], x.w, sums[row][m]);
                }
            }
        }
    }
}

// Sums each of Count values over the lanes of the warp; lane i returns sum number i / (32 / Count). Count is a power of 2:
// in every step a lane keeps half of its values, and gives the other half to its partner.
template <int Count>
__device__ float reduce_lanes(const float* values, int lane, int distance = kLanes / 2) {
    if constexpr (Count == 1) {
        float sum = values[0];
#pragma unroll
        for (; distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        return sum;
    } else {
        const bool keeps_upper = lane & distance;
        float kept[Count / 2];
#pragma unroll
        for (int i = 0; i < Count / 2; ++i) {
            const float mine = keeps_upper ? values[Count / 2 + i] : values[i];
            const float given = keeps_upper ? values[i] : values[Count / 2 + i];
            kept[i] = mine + __shfl_xor_sync(0xffffffffu, given, distance);
        }
        return reduce_lanes<Count / 2>(kept, lane, distance / 2);
    }
}

// The body of every entry. `panel` and `next_panel` are columns whose activations are staged together; the last chunks
// that leave the ring are replaced by L2 prefetches of the first `prefetch` chunks that a warp reads of `next`.
template <typename Weight, int Batch, int Rows>
__device__ void streaming_gemv(const u8* w, const void* x, void* y, const float* scale, const u8* next, int rows,
                               int columns, int batch, int panel, int slots, int type, int next_rows, int next_columns,
                               int next_panel, int prefetch) {
    const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    u8* ring = gemv_shared + warp * slots * kChunkBytes;
    float* staged = reinterpret_cast<float*>(gemv_shared + kWarps * slots * kChunkBytes);
    u8* behind = reinterpret_cast<u8*>(staged + Batch * panel);
    const u32 barriers = shared_address(behind) + warp * slots * 8;
    const auto activation = static_cast<Activation>(type);
    ChunkCursor<Weight, Rows> ahead(w, rows, columns, panel);
    // sums of earlier panels, of the rows of this warp; there are none if there is one panel
    const int most_rows = (rows + gridDim.x * kWarps - 1) / (gridDim.x * kWarps);
    float* partial = reinterpret_cast<float*>(behind + kWarps * slots * 8) + warp * most_rows * Batch;

    if (lane == 0) {
        for (int slot = 0; slot < slots; ++slot) init_barrier(barriers + 8 * slot);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    const u64 policy = read_once_policy();
    auto fill = [&](int slot) {
        if (lane == 0) {
            if (ahead.has_row()) {
                const u32 destination = shared_address(ring + slot * kChunkBytes);
                copy_chunk(destination, ahead.address(), ahead.bytes(), barriers + 8 * slot, policy);
            } else {
                arrive(barriers + 8 * slot);
            }
        }
        ahead.advance();
    };
    for (int slot = 0; slot < slots && !ahead.done(); ++slot) fill(slot);
    __syncwarp();
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");

    ChunkCursor<Weight, Rows> following(next, prefetch ? next_rows : 0, next_columns, next_panel);
    int slot = 0;
    u32 parity = 0;
    const int count = ahead.count, groups = ahead.groups;
    for (int begin = 0; begin < columns; begin += panel) {
        const int end = min(columns, begin + panel);
        if (begin) __syncthreads();
        stage_activations<Weight>(staged, x, batch, columns, begin, end, panel, activation);
        __syncthreads();
        for (int group = 0; group < groups; ++group) {
            float sums[Rows][Batch] = {};
            for (int column = begin; column < end; column += ahead.kColumns) {
                const u8* chunks[Rows];
                const int first_slot = slot;
#pragma unroll
                for (int row = 0; row < Rows; ++row) {
                    wait_for(barriers + 8 * slot, parity);
                    chunks[row] = ring + slot * kChunkBytes;
                    parity ^= slot + 1 == slots;
                    slot = slot + 1 == slots ? 0 : slot + 1;
                }
                add_products<Weight, Batch, Rows>(sums, chunks, staged + column - begin, panel,
                                                  min(ahead.kColumns, end - column), lane);
                __syncwarp();
                int freed = first_slot;
#pragma unroll 1
                for (int row = 0; row < Rows; ++row) {
                    if (!ahead.done()) {
                        fill(freed);
                    } else if (prefetch > 0 && !following.done()) {
                        if (lane == 0 && following.has_row()) prefetch_chunk(following.address(), following.bytes());
                        following.advance();
                        --prefetch;
                    }
                    freed = freed + 1 == slots ? 0 : freed + 1;
                }
            }
            const int sum = lane / (kLanes / (Rows * Batch)), of_warp = group * Rows + sum / Batch, m = sum % Batch;
            float result = reduce_lanes<Rows * Batch>(&sums[0][0], lane);
            if (lane % (kLanes / (Rows * Batch)) == 0 && m < batch && of_warp < count) {
                const int matrix_row = ahead.first + of_warp * ahead.step;
                if (begin) result += partial[of_warp * Batch + m];
                if (end < columns) {
                    partial[of_warp * Batch + m] = result;
                } else {
                    if (scale) result *= scale[matrix_row];
                    store_result(y, static_cast<u64>(m) * rows + matrix_row, result, activation);
                }
            }
        }
    }
    __syncwarp();
    if (lane == 0) {
        for (int each = 0; each < slots; ++each) invalidate_barrier(barriers + 8 * each);
    }
}

// One vector. A row is split among `splits` warps of at most kSliceColumns columns each, whose activations stay in
// registers: shared memory is read once, for the weights.
constexpr int kSliceColumns = 2048;
constexpr int kRowsReduced = 4;  // together

template <typename Weight>
__device__ void load_slice(float* values, const void* x, int begin, int columns, int lane, Activation type) {
    constexpr int vector = kVectorBytes / Weight::bytes, span = kLanes * vector;
#pragma unroll
    for (int step = 0; step < kSliceColumns / span; ++step) {
        const int column = step * span + lane * vector;
#pragma unroll
        for (int quad = 0; quad < vector; quad += 4) {
            float4 loaded = {0, 0, 0, 0};
            if (column < columns) loaded = load_activations(x, begin + column + quad, type);
            float* to = values + step * vector + quad;
            to[0] = loaded.x, to[1] = loaded.y, to[2] = loaded.z, to[3] = loaded.w;
        }
    }
}

template <typename Weight>
__device__ float slice_product(const u8* chunk, const float* values, int columns, int lane) {
    constexpr int vector = kVectorBytes / Weight::bytes, per_word = vector / 4, span = kLanes * vector;
    float sums[4] = {};
#pragma unroll
    for (int step = 0; step < kSliceColumns / span; ++step) {
        if (step * span + lane * vector >= columns) break;
        const uint4 packed = *reinterpret_cast<const uint4*>(chunk + (step * kLanes + lane) * kVectorBytes);
        float weights[vector];
        Weight::unpack(packed.x, weights);
        Weight::unpack(packed.y, weights + per_word);
        Weight::unpack(packed.z, weights + 2 * per_word);
        Weight::unpack(packed.w, weights + 3 * per_word);
#pragma unroll
        for (int i = 0; i < vector; ++i) sums[i % 4] = fmaf(weights[i], values[step * vector + i], sums[i % 4]);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The rows of which a warp reads a slice each.
template <typename Weight>
struct SliceRows {
    const u8* address;
    u64 stride;
    u32 bytes;
    int count;

    __device__ SliceRows(const u8* matrix, int rows, int columns, int splits) {
        const int warp = threadIdx.x / kLanes, teams = blockDim.x / kLanes / splits;
        const int first = blockIdx.x + gridDim.x * (warp / splits), step = gridDim.x * teams;
        bytes = columns / splits * Weight::bytes;
        address = matrix + static_cast<u64>(first) * columns * Weight::bytes + warp % splits * bytes;
        stride = static_cast<u64>(step) * columns * Weight::bytes;
        count = first < rows ? (rows - first + step - 1) / step : 0;
    }
    __device__ const u8* row(int i) const { return address + i * stride; }
};

template <typename Weight>
__device__ void sliced_gemv(const u8* w, const void* x, void* y, const float* scale, const u8* next, int rows,
                            int columns, int splits, int slots, int type, int next_rows, int next_columns,
                            int next_splits, int prefetch) {
    constexpr int slot_bytes = kSliceColumns * Weight::bytes;
    const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    const int warps = blockDim.x / kLanes, split = warp % splits, team = warp / splits, teams = warps / splits;
    const int most_rows = (rows + gridDim.x * teams - 1) / (gridDim.x * teams);  // of a team
    u8* ring = gemv_shared + warp * slots * slot_bytes;
    const u32 barriers = shared_address(gemv_shared + warps * slots * slot_bytes) + warp * slots * 8;
    float* partial = reinterpret_cast<float*>(gemv_shared + warps * slots * (slot_bytes + 8));  // [splits][teams][rows]
    const auto activation = static_cast<Activation>(type);
    const SliceRows<Weight> mine(w, rows, columns, splits);

    if (lane == 0) {
        for (int slot = 0; slot < slots; ++slot) init_barrier(barriers + 8 * slot);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    const u64 policy = read_once_policy();
    int issued = 0;
    auto fill = [&](int slot) {
        const u32 destination = shared_address(ring + slot * slot_bytes);
        if (lane == 0) copy_chunk(destination, mine.row(issued), mine.bytes, barriers + 8 * slot, policy);
        ++issued;
    };
    for (int slot = 0; slot < slots && issued < mine.count; ++slot) fill(slot);
    __syncwarp();
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");

    const int slice = columns / splits;
    float values[kSliceColumns / kLanes];
    load_slice<Weight>(values, x, split * slice, slice, lane, activation);
    const SliceRows<Weight> following(next, next_rows, next_columns, next_splits);
    prefetch = min(prefetch, following.count);
    int slot = 0, prefetched = 0;
    u32 parity = 0;
    for (int begin = 0; begin < mine.count; begin += kRowsReduced) {
        float sums[kRowsReduced] = {};  // of the latest row first
        const int end = min(mine.count, begin + kRowsReduced);
#pragma unroll 1
        for (int i = begin; i < end; ++i) {
            wait_for(barriers + 8 * slot, parity);
            const float sum = slice_product<Weight>(ring + slot * slot_bytes, values, slice, lane);
#pragma unroll
            for (int later = kRowsReduced - 1; later > 0; --later) sums[later] = sums[later - 1];
            sums[0] = sum;
            __syncwarp();
            if (issued < mine.count) {
                fill(slot);
            } else if (prefetched < prefetch) {
                if (lane == 0) prefetch_chunk(following.row(prefetched), following.bytes);
                ++prefetched;
            }
            parity ^= slot + 1 == slots;
            slot = slot + 1 == slots ? 0 : slot + 1;
        }
        const float result = reduce_lanes<kRowsReduced>(sums, lane);
        const int of_team = end - 1 - lane / (kLanes / kRowsReduced);
        if (lane % (kLanes / kRowsReduced) == 0 && of_team >= begin) {
            partial[(split * teams + team) * most_rows + of_team] = result;
        }
    }
    __syncwarp();
    if (lane == 0) {
        for (int each = 0; each < slots; ++each) invalidate_barrier(barriers + 8 * each);
    }
    __syncthreads();
    for (int index = threadIdx.x; index < teams * most_rows; index += blockDim.x) {
        const int row = blockIdx.x + gridDim.x * (index / most_rows + teams * (index % most_rows));
        if (row >= rows) continue;
        float sum = partial[index];
        for (int part = 1; part < splits; ++part) sum += partial[part * teams * most_rows + index];
        if (scale) sum *= scale[row];
        store_result(y, row, sum, activation);
    }
}

}  // namespace

// SK_WEIGHT (Bfloat16, Float16, Int8) and SK_BATCH (1, 2, 4, 8, or SK_SLICED instead) choose the entry SK_ENTRY.
#ifdef SK_SCALED
#define SCALE_PARAMETER const float* scale,
#define SCALE scale
#else
#define SCALE_PARAMETER
#define SCALE nullptr
#endif

#ifdef SK_SLICED
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    SK_ENTRY(const u8* w, SCALE_PARAMETER const u8* x, u8* y, const u8* next, int rows, int columns, int splits, int slots,
             int type, int next_rows, int next_columns, int next_splits, int prefetch) {
    sliced_gemv<SK_WEIGHT>(w, x, y, SCALE, next, rows, columns, splits, slots, type, next_rows, next_columns, next_splits,
                           prefetch);
}
#else
// Two rows at a time halve the reads of activations from shared memory, which limit the speed from 8 vectors on.
constexpr int kRowsTogether = SK_BATCH / SK_WEIGHT::bytes >= 4 ? 2 : 1;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    SK_ENTRY(const u8* w, SCALE_PARAMETER const u8* x, u8* y, const u8* next, int rows, int columns, int batch, int panel,
             int slots, int type, int next_rows, int next_columns, int next_panel, int prefetch) {
    streaming_gemv<SK_WEIGHT, SK_BATCH, kRowsTogether>(w, x, y, SCALE, next, rows, columns, batch, panel, slots, type,
                                                       next_rows, next_columns, next_panel, prefetch);
}
#endif
