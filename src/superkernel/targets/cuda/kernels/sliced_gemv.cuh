// sliced_gemv.cuh: one vector: groups of rows go through one ring per block; warps keep slices of the vector in registers.
#pragma once
#include "gemv_parts.cuh"

namespace {

// A warp of its own asks for groups of rows; the others multiply. They form sets: the `Parts` warps of a set share a
// group, each a slice of its columns, and the sets take turns. Of the groups only some are on their way at a time: more
// would lengthen the queue to the memory, in which the signals between the ops of a super kernel stand as well.
//
// `staged`: a super kernel fills the ring, for one op after the other. Then the ring is there when a block begins, and
// the block takes its groups from where the op before it has stopped.

constexpr int kProducer = kWarps;  // the warp that fills the ring
constexpr int kSlicedThreads = kLanes * (kWarps + 1);

__device__ void init_counting_barrier(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

struct GroupRing {
    u8* chunks;
    int slots, chunk_bytes;
    u32 full, empty;  // barriers, one per slot
    u32* taken;       // groups that earlier blocks have taken from a staged ring, modulo two turns
    float* partial;   // sums of slices: of the groups of a round, their rows, their slices

    __device__ GroupRing(int slots, int chunk_bytes) : chunks(gemv_shared), slots(slots), chunk_bytes(chunk_bytes) {
        u8* behind = chunks + slots * chunk_bytes;
        full = shared_address(behind);
        empty = full + 8 * slots;
        taken = reinterpret_cast<u32*>(behind + 16 * slots);
        partial = reinterpret_cast<float*>(behind + 16 * slots + kVectorBytes);
    }

    __device__ void init(int lane) const {
        for (int slot = lane; slot < slots; slot += kLanes) {
            init_barrier(full + 8 * slot);
            init_counting_barrier(empty + 8 * slot, kWarps);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
    }

    __device__ void invalidate(int lane) const {
        for (int slot = lane; slot < 2 * slots; slot += kLanes) invalidate_barrier(full + 8 * slot);
    }
};

// Place in the ring; the phase of its barriers changes with every turn.
struct RingPlace {
    int slot = 0;
    u32 phase = 0;

    __device__ void advance(int by, int slots) {
        slot += by;
        if (slot >= slots) {
            slot -= slots;
            phase ^= 1;
        }
    }
};

struct GroupProducer {
    const GroupRing& ring;
    const u8* next_group;
    u64 stride;       // bytes from a group of this block to its next
    u32 group_bytes;  // of a group that is full
    u64 bytes_left;   // from next_group to the end of the matrix
    int most_flying;
    int asked = 0, flying = 0;
    RingPlace place, oldest;  // of the next group, and of the first that may still be on its way

    __device__ void ask_until(int end) {
        for (; asked < end; ++asked) {
            wait_for(ring.empty + 8 * place.slot, place.phase ^ 1);  // a fresh barrier counts as one turn before
            if (flying >= most_flying) {
                wait_for(ring.full + 8 * oldest.slot, oldest.phase);
                oldest.advance(1, ring.slots);
            } else {
                ++flying;
            }
            const u32 bytes = bytes_left < group_bytes ? static_cast<u32>(bytes_left) : group_bytes;
            const u32 barrier = ring.full + 8 * place.slot;
            asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier),
                         "r"(bytes)
                         : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    shared_address(ring.chunks + place.slot * ring.chunk_bytes)),
                "l"(__cvta_generic_to_global(next_group)), "r"(bytes), "r"(barrier)
                : "memory");
            place.advance(1, ring.slots);
            next_group += stride;
            bytes_left -= stride;  // below zero behind the last group
        }
    }
};

template <typename Weight, int Parts, int Steps, int Rows>
struct SliceConsumer {
    static constexpr int sets = kWarps / Parts, vector = kVectorBytes / Weight::bytes, span = kLanes * vector;
    static constexpr int lanes_of_row = kLanes / Rows;
    const GroupRing& ring;
    int columns, slice, part, lane;
    RingPlace place;
    float values[Steps * vector];

    __device__ bool within(int step) const { return step * span + lane * vector < slice; }

    __device__ void load(const void* x, Activation type) {
#pragma unroll
        for (int step = 0; step < Steps; ++step) {
            const int column = part * slice + step * span + lane * vector;
#pragma unroll
            for (int quad = 0; quad < vector; quad += 4) {
                float4 loaded = {0, 0, 0, 0};
                if (within(step)) loaded = load_activations(x, column + quad, type);
                float* to = values + step * vector + quad;
                to[0] = loaded.x, to[1] = loaded.y, to[2] = loaded.z, to[3] = loaded.w;
            }
        }
    }

    __device__ float product(const uint4* packed) const {
        constexpr int per_word = vector / 4;
        float sums[4] = {};
#pragma unroll
        for (int step = 0; step < Steps; ++step) {
            float weights[vector];
            Weight::unpack(packed[step].x, weights);
            Weight::unpack(packed[step].y, weights + per_word);
            Weight::unpack(packed[step].z, weights + 2 * per_word);
            Weight::unpack(packed[step].w, weights + 3 * per_word);
#pragma unroll
            for (int i = 0; i < vector; ++i) sums[i % 4] = fmaf(weights[i], values[step * vector + i], sums[i % 4]);
        }
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }

    __device__ void keep(const float* sums, int group) const {
        const float sum = reduce_lanes<Rows>(sums, lane);
        if (group >= 0 && lane % lanes_of_row == 0) {
            ring.partial[(group * Rows + lane / lanes_of_row) * Parts + part] = sum;
        }
    }

    // Multiplies the groups first, first + sets, ... of a round. The sums of a group are added up over the lanes while the
    // next group is loaded.
    __device__ void consume(int first, int count) {
        float before[Rows] = {};
        int group = first;
        for (; group < count; group += sets) {
            wait_for(ring.full + 8 * place.slot, place.phase);
            const u8* base = ring.chunks + place.slot * ring.chunk_bytes + part * slice * Weight::bytes;
            uint4 packed[Rows][Steps];
#pragma unroll
            for (int row = 0; row < Rows; ++row) {
#pragma unroll
                for (int step = 0; step < Steps; ++step) {
                    packed[row][step] = {0, 0, 0, 0};
                    const u8* at = base + row * columns * Weight::bytes + (step * kLanes + lane) * kVectorBytes;
                    if (within(step)) packed[row][step] = *reinterpret_cast<const uint4*>(at);
                }
            }
            keep(before, group - sets);
#pragma unroll
            for (int row = 0; row < Rows; ++row) before[row] = product(packed[row]);
            __syncwarp();
            if (lane < sets) arrive(ring.empty + 8 * place.slot);  // kWarps arrivals, whatever the number of parts
            place.advance(sets, ring.slots);
        }
        keep(before, group - sets);
    }
};

// The last `idle` blocks multiply nothing. `early` groups are asked for before the wait point, `flying` at a time, and
// `flying_behind` behind it; a round has at most `most` groups. A `staged` ring has the groups of this block next.
template <typename Weight, int Parts, int Steps, int Rows>
__device__ void sliced_gemv(const u8* w, const void* x, void* y, const float* scale, int rows, int columns, int idle,
                            int slots, int early, int flying, int flying_behind, int most, int staged, int type) {
    using Consumer = SliceConsumer<Weight, Parts, Steps, Rows>;
    const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    const int groups = (rows + Rows - 1) / Rows, blocks = gridDim.x - idle;
    const int block = blockIdx.x < blocks ? blockIdx.x : groups;  // behind the last group: none
    const int total = groups > block ? (groups - block + blocks - 1) / blocks : 0;  // of this block
    const auto activation = static_cast<Activation>(type);
    const u64 row_bytes = static_cast<u64>(columns) * Weight::bytes, group_bytes = Rows * row_bytes;
    const GroupRing ring(slots, Parts * Steps * Rows * kLanes * kVectorBytes);
    GroupProducer producer{ring, w + block * group_bytes, blocks * group_bytes, static_cast<u32>(group_bytes),
                           (static_cast<u64>(rows) - static_cast<u64>(block) * Rows) * row_bytes, flying};
    if (warp == kProducer && !staged) {
        ring.init(lane);
        if (lane == 0) producer.ask_until(min(early, total));
        __syncwarp();
    }
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    __syncthreads();  // the barriers of the ring are there
    producer.most_flying = flying_behind;
    const int set = warp / Parts;
    const u32 taken = staged ? *ring.taken : 0, first = taken + set;
    Consumer consumer{ring, columns, columns / Parts, warp % Parts, lane, {static_cast<int>(first % slots), first / slots & 1}};
    if (warp < kWarps) consumer.load(x, activation);
    for (int begin = 0; begin < total; begin += most) {
        const int count = min(most, total - begin);
        if (warp < kWarps) {
            // a round has a multiple of all sets, so that a set keeps to its slots
            consumer.consume(set, count);
        } else if (lane == 0 && !staged) {
            producer.ask_until(min(total, begin + most + flying_behind));
        }
        __syncwarp();
        __syncthreads();
        for (int index = threadIdx.x; index < count * Rows; index += kSlicedThreads) {
            const int row = (block + blocks * (begin + index / Rows)) * Rows + index % Rows;
            if (row >= rows) continue;
            const float* parts = ring.partial + index * Parts;
            float sum = parts[0];
#pragma unroll
            for (int part = 1; part < Parts; ++part) sum += parts[part];
            if (scale) sum *= scale[row];
            store_result(y, row, sum, activation);
        }
        if (begin + most < total) __syncthreads();
    }
    if (warp < kProducer) return;
    if (!staged) {
        ring.invalidate(lane);
    } else if (lane == 0 && total) {  // a block without groups has no barrier behind its read
        *ring.taken = (taken + total) % (2 * slots);
    }
}

}  // namespace
