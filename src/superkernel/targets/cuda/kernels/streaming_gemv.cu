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

// Several vectors. Activations are staged in shared memory, `panel` columns at a time; a warp multiplies whole rows.
template <typename Weight, int Batch, int Rows>
__device__ void staged_gemv(const u8* w, const void* x, void* y, const float* scale, int rows, int columns, int batch,
                            int panel, int slots, int type) {
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
                    if (!ahead.done()) fill(freed);
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

// One vector. A block reads groups of rows through one ring: a warp of its own asks for them, the others multiply, each a
// slice of the columns, whose activations it keeps in registers. The first `fixed` groups of a block are its own; the
// rest is handed out by tickets, because some SMs get their data faster than others.

constexpr int kProducer = kWarps;  // the warp that fills the ring
constexpr int kPooledThreads = kLanes * (kWarps + 1);
constexpr int kRoundEnds = -2, kNoMore = -1;  // in place of a group
constexpr int kTicketsAhead = 3;

__device__ u32 take_ticket(u32* tickets, u32 last) {
    u32 ticket;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(ticket)
                 : "l"(__cvta_generic_to_global(tickets)), "r"(last)
                 : "memory");
    return ticket;
}

__device__ void init_counting_barrier(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

struct Pool {  // the shared memory of a block
    u8* ring;
    int slots, slot_bytes;
    int* group_of_slot;
    int* groups;  // of this round
    int* count;   // how many they are
    float* partial;
    u32 full, empty;

    __device__ Pool(int slots, int slot_bytes, int most) : ring(gemv_shared), slots(slots), slot_bytes(slot_bytes) {
        u8* behind = ring + slots * slot_bytes;
        full = shared_address(behind);
        empty = full + 8 * slots;
        group_of_slot = reinterpret_cast<int*>(behind + 16 * slots);
        groups = group_of_slot + slots;
        count = groups + most;
        partial = reinterpret_cast<float*>(count + 1);
    }
};

template <typename Weight>
struct GroupProducer {
    const Pool& pool;
    const u8* matrix;
    u32* tickets;
    int rows, columns, rows_of_group, fixed, total;
    int taken = 0, slot = 0, in_round = 0, pending = kNoMore;
    bool began = false;
    u32 filled = 0;
    int ahead[kTicketsAhead];  // tickets that were asked for, the oldest first: an answer takes longer than a group

    __device__ int handed_out() const { return max(0, total - static_cast<int>(gridDim.x) * fixed); }

    // Every block takes kTicketsAhead tickets too many; the counter wraps to 0 behind the last of all.
    __device__ int ask() const { return take_ticket(tickets, handed_out() + kTicketsAhead * gridDim.x - 1); }

    // Asks for the rows of a group, which follow each other in memory.
    __device__ void fill(int group) {
        pool.group_of_slot[slot] = group;
        const u32 row_bytes = columns * Weight::bytes, barrier = pool.full + 8 * slot;
        const u32 bytes = row_bytes * min(rows_of_group, rows - group * rows_of_group);
        const u8* source = matrix + static_cast<u64>(group) * rows_of_group * row_bytes;
        asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier),
                     "r"(bytes)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared_address(pool.ring + slot * pool.slot_bytes)),
            "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier)
            : "memory");
        advance();
    }

    __device__ void advance() {
        slot = slot + 1 == pool.slots ? 0 : slot + 1;
        ++filled;
    }

    __device__ void post(int group) {
        const u32 use = filled / pool.slots;
        if (use) wait_for(pool.empty + 8 * slot, (use - 1) & 1);
        if (group >= 0) {
            fill(group);
            return;
        }
        pool.group_of_slot[slot] = group;
        arrive(pool.full + 8 * slot);
        advance();
    }

    // Whether the group has a place in this round; otherwise the next round begins with it.
    __device__ bool fits(int group, int most) {
        if (in_round < most) {
            post(group);
            ++in_round;
            return true;
        }
        pending = group;
        in_round = 0;
        post(kRoundEnds);
        return false;
    }

    // Fills slots until the round has `most` groups, or nothing is left; whether another round follows.
    __device__ bool produce(int most) {
#ifdef SK_TICKETS
        if (!began && handed_out() > 0) {
#pragma unroll
            for (int i = 0; i < kTicketsAhead; ++i) ahead[i] = ask();
        }
        began = true;
#endif
        if (pending != kNoMore) fits(pending, most);
        pending = kNoMore;
        while (taken < fixed) {
            const int group = blockIdx.x + gridDim.x * taken++;
            if (group < total && !fits(group, most)) return true;
        }
#ifdef SK_TICKETS
        while (handed_out() > 0) {
#pragma unroll
            for (int i = 0; i < kTicketsAhead; ++i) {  // each with its register: a move would wait for the answer
                const int ticket = ahead[i];
                if (ticket >= handed_out()) {
                    post(kNoMore);
                    return false;
                }
                ahead[i] = ask();
                if (!fits(total - handed_out() + ticket, most)) {
                    rotate(i + 1);
                    return true;
                }
            }
        }
#endif
        post(kNoMore);
        return false;
    }

    // The ticket at `oldest` becomes the first.
    __device__ void rotate(int oldest) {
        for (; oldest % kTicketsAhead; ++oldest) {
            const int last = ahead[kTicketsAhead - 1];
#pragma unroll
            for (int i = kTicketsAhead - 1; i > 0; --i) ahead[i] = ahead[i - 1];
            ahead[0] = last;
        }
    }
};

template <typename Weight, int Steps, int Rows>
struct GroupConsumer {
    static constexpr int vector = kVectorBytes / Weight::bytes, span = kLanes * vector;
    const Pool& pool;
    int columns, slice, warp, lane;
    float values[Steps * vector];
    int slot = 0;
    u32 parity = 0;

    __device__ void load(const void* x, Activation type) {
#pragma unroll
        for (int step = 0; step < Steps; ++step) {
            const int column = step * span + lane * vector;
#pragma unroll
            for (int quad = 0; quad < vector; quad += 4) {
                float4 loaded = {0, 0, 0, 0};
                if (column < slice) loaded = load_activations(x, warp * slice + column + quad, type);
                float* to = values + step * vector + quad;
                to[0] = loaded.x, to[1] = loaded.y, to[2] = loaded.z, to[3] = loaded.w;
            }
        }
    }

    __device__ float product(const u8* row) const {
        constexpr int per_word = vector / 4;
        float sums[4] = {};
#pragma unroll
        for (int step = 0; step < Steps; ++step) {
            if (step * span + lane * vector >= slice) break;
            const uint4 packed = *reinterpret_cast<const uint4*>(row + (step * kLanes + lane) * kVectorBytes);
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

    // Multiplies the groups of a round; whether another round follows.
    __device__ bool consume() {
        int held = 0, group;
        while (true) {
            wait_for(pool.full + 8 * slot, parity);
            group = pool.group_of_slot[slot];
            if (group >= 0) {
                const u8* base = pool.ring + slot * pool.slot_bytes + warp * slice * Weight::bytes;
                float sums[Rows];
#pragma unroll
                for (int row = 0; row < Rows; ++row) sums[row] = product(base + row * columns * Weight::bytes);
                const float sum = reduce_lanes<Rows>(sums, lane);
                if (lane % (kLanes / Rows) == 0) {
                    pool.partial[(held * Rows + lane / (kLanes / Rows)) * kWarps + warp] = sum;
                }
                if (warp == 0 && lane == 0) pool.groups[held] = group;
                ++held;
            }
            __syncwarp();
            if (lane == 0) arrive(pool.empty + 8 * slot);
            parity ^= slot + 1 == pool.slots;
            slot = slot + 1 == pool.slots ? 0 : slot + 1;
            if (group < 0) break;
        }
        if (warp == 0 && lane == 0) *pool.count = held;
        return group == kRoundEnds;
    }
};

// All rounds of a block, after the wait point.
template <typename Weight, int Steps, int Rows>
__device__ void multiply_rounds(const Pool& pool, GroupProducer<Weight>& producer, const void* x, void* y,
                                const float* scale, int most, Activation type) {
    const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    GroupConsumer<Weight, Steps, Rows> consumer{pool, producer.columns, producer.columns / kWarps, warp, lane};
    if (warp < kWarps) consumer.load(x, type);
    bool more = true;
    while (more) {
        if (warp < kWarps) {
            more = consumer.consume();
        } else {
            if (lane == 0) more = producer.produce(most);
            more = __shfl_sync(0xffffffffu, more, 0);
        }
        __syncthreads();
        for (int index = threadIdx.x; index < *pool.count * Rows; index += kPooledThreads) {
            const int row = pool.groups[index / Rows] * Rows + index % Rows;
            if (row >= producer.rows) continue;
            float sum = pool.partial[index * kWarps];
#pragma unroll
            for (int part = 1; part < kWarps; ++part) sum += pool.partial[index * kWarps + part];
            if (scale) sum *= scale[row];
            store_result(y, row, sum, type);
        }
        __syncthreads();
    }
}

// `steps`: the vectors of a slice that a lane reads; groups have 4 rows, of long rows 2.
template <typename Weight>
__device__ void pooled_gemv(const u8* w, const void* x, void* y, const float* scale, u32* tickets, int rows, int columns,
                            int steps, int slots, int fixed, int most, int type) {
    const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, rows_of_group = steps == 4 ? 2 : 4;
    const int total = (rows + rows_of_group - 1) / rows_of_group;
    const auto activation = static_cast<Activation>(type);
    const Pool pool(slots, steps * rows_of_group * kWarps * kLanes * kVectorBytes, most);
    GroupProducer<Weight> producer{pool, w, tickets, rows, columns, rows_of_group, fixed, total};
    if (warp == kProducer && lane == 0) {
        for (int slot = 0; slot < slots; ++slot) {
            init_barrier(pool.full + 8 * slot);
            init_counting_barrier(pool.empty + 8 * slot, kWarps);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (; producer.taken < min(fixed, slots); ++producer.taken) {
            const int group = blockIdx.x + gridDim.x * producer.taken;
            if (group >= total) break;
            producer.fill(group);
            ++producer.in_round;
        }
    }
    __syncthreads();
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (steps == 1) {
        multiply_rounds<Weight, 1, 4>(pool, producer, x, y, scale, most, activation);
    } else if (steps == 2) {
        multiply_rounds<Weight, 2, 4>(pool, producer, x, y, scale, most, activation);
    } else {
        multiply_rounds<Weight, 4, 2>(pool, producer, x, y, scale, most, activation);
    }
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < slots; ++slot) {
            invalidate_barrier(pool.full + 8 * slot);
            invalidate_barrier(pool.empty + 8 * slot);
        }
    }
}

}  // namespace

// SK_WEIGHT (Bfloat16, Float16, Int8) and SK_BATCH (1, 2, 4, 8, or SK_POOLED instead) choose the entry SK_ENTRY.
// A counter of tickets is 0 before and after a launch.
#ifdef SK_SCALED
#define SCALE_PARAMETER const float* scale,
#define SCALE scale
#else
#define SCALE_PARAMETER
#define SCALE nullptr
#endif

#ifdef SK_TICKETS
#define TICKETS_PARAMETER u32* tickets,
#define TICKETS tickets
#else
#define TICKETS_PARAMETER
#define TICKETS nullptr
#endif

#ifdef SK_POOLED
extern "C" __global__ void __launch_bounds__(kPooledThreads, 1)
    SK_ENTRY(const u8* w, SCALE_PARAMETER const u8* x, u8* y, TICKETS_PARAMETER int rows, int columns, int steps, int slots,
             int fixed, int most, int type) {
    pooled_gemv<SK_WEIGHT>(w, x, y, SCALE, TICKETS, rows, columns, steps, slots, fixed, most, type);
}
#else
// Two rows at a time halve the reads of activations from shared memory, which limit the speed from 8 vectors on.
constexpr int kRowsTogether = SK_BATCH / SK_WEIGHT::bytes >= 4 ? 2 : 1;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    SK_ENTRY(const u8* w, SCALE_PARAMETER const u8* x, u8* y, int rows, int columns, int batch, int panel, int slots,
             int type) {
    staged_gemv<SK_WEIGHT, SK_BATCH, kRowsTogether>(w, x, y, SCALE, rows, columns, batch, panel, slots, type);
}
#endif
