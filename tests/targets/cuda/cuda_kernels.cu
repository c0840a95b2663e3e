// Kernels of the corpus that nvcc compiles; corpus.py says how they are launched.

#include <cooperative_groups.h>
#include <cstdio>
#include <cuda_bf16.h>

extern "C" {

__global__ void saxpy(const float* __restrict__ x, float* y, float a, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) y[at] = a * x[at] + y[at];
}

__global__ void tile_sum(const float* x, float* y) {
    __shared__ float part[128];
    part[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
    __syncthreads();
    for (int width = 64; width > 0; width /= 2) {
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}

__global__ void dynamic_sum(const float* x, float* y) {
    extern __shared__ float dynamic[];
    int at = threadIdx.y * blockDim.x + threadIdx.x;
    dynamic[at] = x[blockIdx.x * 128 + at];
    __syncthreads();
    float sum = 0;
    for (int other = 0; other < 128; ++other) sum += dynamic[other];
    if (at == 0) y[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(128, 2) bounded(const float* x, float* y) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    y[at] = x[at] * 2;
}

__device__ const float sine_table[4] = {0.25f, 0.5f, 0.75f, 1.0f};

__global__ void sine(const float* x, float* y) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    y[at] = sine_table[at % 4] * __sinf(x[at]);
}

__global__ void choose(const int* x, int* y, int which) {
    int at = blockIdx.x * blockDim.x + threadIdx.x, value = x[at];
    switch (which) {
        case 0: value = y[at ^ 1]; break;
        case 1: value *= value; break;
        case 2: value = __popc(value); break;
        case 3: value = value / (at + 1); break;
        case 4: value = __brev(value) + at; break;
        case 5: value = __clz(value); break;
        default: value = -value;
    }
    y[at] = value;
}

__global__ void bfloat_add(const __nv_bfloat16* x, __nv_bfloat16* y) {  // a compare-and-swap loop on older parts
    unsigned short* word = reinterpret_cast<unsigned short*>(y) + blockIdx.x;
    unsigned short old = *word, assumed;
    do {
        assumed = old;
        __nv_bfloat16 sum = __hadd(__ushort_as_bfloat16(assumed), x[blockIdx.x * blockDim.x + threadIdx.x]);
        old = atomicCAS(word, assumed, __bfloat16_as_ushort(sum));
    } while (old != assumed);
}

struct Pair {
    float* data;
    int count;
};

__global__ void struct_argument(Pair p) { p.data[threadIdx.x] = p.count; }

__global__ void grid_sync(float* x) {
    x[blockIdx.x] = 1;
    cooperative_groups::this_grid().sync();
    x[blockIdx.x + 4] = x[0];
}

__global__ void print_value(const float* x) { printf("%f\n", x[threadIdx.x]); }

__global__ void allocate(float* x) {
    float* area = static_cast<float*>(malloc(64));
    area[threadIdx.x % 16] = 1;
    x[threadIdx.x] = area[0];
    free(area);
}

__global__ void texture(cudaTextureObject_t t, float* y) { y[threadIdx.x] = tex1Dfetch<float>(t, threadIdx.x); }

#if __CUDA_ARCH__ >= 900
__global__ void __cluster_dims__(2, 1, 1) cluster(float* x) {
    cooperative_groups::this_cluster().sync();
    x[threadIdx.x] = 1;
}
#endif

__global__ void named_barrier(float* x) {
    asm volatile("bar.sync 1, 128;" ::: "memory");
    x[threadIdx.x] = 1;
}

__global__ void half_barrier(float* x) {
    if (threadIdx.x < 64) asm volatile("bar.sync 0, 64;" ::: "memory");
    x[threadIdx.x] = 1;
}

__constant__ float filled_by_host[128];

__global__ void from_host(float* x) { x[threadIdx.x] = filled_by_host[threadIdx.x]; }

__device__ int counter = 1;

__global__ void count_up(int* x) { x[threadIdx.x] = atomicAdd(&counter, 1); }
}
