// pooled_gemv.cuh: one vector: groups of rows through one ring per block, handed out by tickets.
#pragma once
#include "gemv_parts.cuh"

namespace {

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
