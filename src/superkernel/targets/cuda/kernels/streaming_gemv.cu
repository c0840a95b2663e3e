// streaming_gemv.cu: weights [rows, columns] and 1 to 8 activation vectors -> their products, at the speed of the memory.
//
// Weights go through a ring in shared memory, filled by bulk asynchronous copies, with an mbarrier per chunk. The ring is
// filled before the wait point, so that weights are in flight while earlier ops finish; activations are read after it.
// Every row is summed in a fixed order: the result has the same bits in a launch of its own and in a super kernel.
// The PTX beside this file is written by tools/write_ptx.py.
//
// SK_WEIGHT (Bfloat16, Float16, Int8) and either SK_BATCH (1, 2, 4, 8: activations are staged in shared memory) or SK_PARTS,
// SK_STEPS and SK_ROWS (one vector: warps of a set, vectors of a slice that a lane reads, rows of a group) choose the entry
// SK_ENTRY.
#ifdef SK_PARTS
#include "sliced_gemv.cuh"
#else
#include "staged_gemv.cuh"
#endif

#ifdef SK_SCALED
#define SCALE_PARAMETER const float* scale,
#define SCALE scale
#else
#define SCALE_PARAMETER
#define SCALE nullptr
#endif

#ifdef SK_PARTS
extern "C" __global__ void __launch_bounds__(kSlicedThreads, 1)
    SK_ENTRY(const u8* w, SCALE_PARAMETER const u8* x, u8* y, int rows, int columns, int idle, int slots, int early,
             int flying, int flying_behind, int most, int staged, int type) {
    sliced_gemv<SK_WEIGHT, SK_PARTS, SK_STEPS, SK_ROWS>(w, x, y, SCALE, rows, columns, idle, slots, early, flying,
                                                        flying_behind, most, staged, type);
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
