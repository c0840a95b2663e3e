// kernel_operator.h: the primitives of an AI core that emitted entries use, for a host compiler.
#pragma once
#include "superkernel/emulator.h"

#define __global__
#define __aicore__
#define __gm__
#define GM_ADDR __gm__ uint8_t*

enum pipe_t { PIPE_S = 0, PIPE_V = 1, PIPE_M = 2, PIPE_MTE1 = 3, PIPE_MTE2 = 4, PIPE_MTE3 = 5, PIPE_ALL = 6, PIPE_FIX = 10 };
enum cache_line_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE = 1 };
enum dcci_dst_t { CACHELINE_ALL = 0, CACHELINE_UB = 1, CACHELINE_OUT = 2, CACHELINE_ATOMIC = 3 };
// How a launch groups its cores; an entry says it, and the emulator compares it with the launch.
enum KernelMetaType {
    KERNEL_TYPE_AIV_ONLY, KERNEL_TYPE_AIC_ONLY, KERNEL_TYPE_MIX_AIV_1_0, KERNEL_TYPE_MIX_AIC_1_0,
    KERNEL_TYPE_MIX_AIC_1_1, KERNEL_TYPE_MIX_AIC_1_2
};
#define KERNEL_TASK_TYPE_DEFAULT(type) sk_emu_task_type(type, __LINE__)

// The default of `line` is where the call stands: errors name it.
#define SK_LINE int line = __builtin_LINE()

inline int64_t get_block_idx() { return sk_emu_block_idx(); }
inline int64_t get_subblockid() { return sk_emu_sub_block(); }
inline int64_t get_subblockdim() { return sk_emu_sub_block_num(); }
inline int64_t get_block_num() { return sk_emu_block_num(); }
inline int64_t get_coreid() { return sk_emu_core_id(); }
inline int64_t get_para_base() { return static_cast<int64_t>(sk_emu_para_base()); }
inline int64_t get_sys_cnt() { return static_cast<int64_t>(sk_emu_clock()); }

inline void set_ffts_base_addr(uint64_t address, SK_LINE) { sk_emu_ffts_base(address, line); }
inline void ffts_cross_core_sync(pipe_t pipe, uint64_t config, SK_LINE) { sk_emu_signal(pipe, config, line); }
inline void wait_flag_dev(int64_t flag, SK_LINE) { sk_emu_wait(flag, line); }
inline void pipe_barrier(pipe_t pipe, SK_LINE) { sk_emu_pipe_barrier(pipe, line); }

inline void dcci(__gm__ void* address, cache_line_t scope, dcci_dst_t destination, SK_LINE) {
    sk_emu_dcci(reinterpret_cast<uint64_t>(address), scope == ENTIRE_DATA_CACHE, destination, line);
}
inline void preload(const void* function, int64_t lines, SK_LINE) { sk_emu_preload(function, lines, line); }
[[noreturn]] inline void trap(SK_LINE) { sk_emu_trap(line); }

template <class T>
inline T sk_load(const T* address, SK_LINE) {
    static_assert(sizeof(T) <= 8, "the scalar unit loads up to 8 bytes");
    uint64_t bits = sk_emu_load(reinterpret_cast<uint64_t>(address), sizeof(T), line);
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T, class V>
inline void sk_store(T* address, V value, SK_LINE) {
    static_assert(sizeof(T) <= 8, "the scalar unit stores up to 8 bytes");
    T exact = T(value);
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &exact, sizeof(T));
    sk_emu_store(reinterpret_cast<uint64_t>(address), bits, sizeof(T), line);
}
// What the entry says of its next call: blocks of the op (0: as planned), the pair code whose waits the sub-kernel makes
// (-1: none), whether it arrives itself, and the control word of its barriers (0: no core feeds them).
inline void sk_call_context(uint32_t blocks, int32_t wait_pair, int32_t arrives, uint64_t feed_word) {
    sk_emu_call_context(blocks, wait_pair, arrives, feed_word);
}
inline void sk_cann_context(uint32_t blocks, int32_t wait_pair, int32_t arrives, uint64_t feed_word) {
    sk_emu_call_context(blocks, wait_pair, arrives, feed_word);
}
inline void sk_dump_context(uint64_t address) { sk_emu_dump_context(address); }  // this core's part of the dump area
#undef SK_LINE
