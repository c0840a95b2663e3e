// staged_gemv.cuh: several vectors: activations staged in shared memory, whole rows multiplied by a warp.
#pragma once
#include "gemv_parts.cuh"

namespace {

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

}  // namespace
