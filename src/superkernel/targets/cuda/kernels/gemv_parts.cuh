// gemv_parts.cuh: what the GEMV kernels share: mbarriers and bulk copies, values of all dtypes, sums over lanes.
#pragma once

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

__device__ void store_result(void* y, u64 index, float value, Activation type) {
    if (type == Activation::float32) {
        static_cast<float*>(y)[index] = value;
    } else {
        static_cast<u16*>(y)[index] = type == Activation::bfloat16 ? to_bfloat(value) : to_half(value);
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

}  // namespace
