// emulator.h: what the emitted entry and host sub-kernels call on the emulated chip. Implemented in host/.
#pragma once
#include <cstdint>

extern "C" {
// the calling core
int64_t sk_emu_block_idx(void);     // of the launch
int64_t sk_emu_sub_block(void);     // of a vector core in its block
int64_t sk_emu_sub_block_num(void);
int64_t sk_emu_block_num(void);     // of the launch
int64_t sk_emu_core_id(void);
int sk_emu_is_cube(void);
uint64_t sk_emu_para_base(void);

// flags between cores; `line` is where the caller stands in its source
void sk_emu_task_type(int type, int line);
void sk_emu_ffts_base(uint64_t address, int line);
void sk_emu_signal(int pipe, uint64_t config, int line);
void sk_emu_wait(int64_t flag, int line);

// memory: the scalar unit goes through the data cache, the transfer engines do not
uint64_t sk_emu_load(uint64_t address, int bytes, int line);
void sk_emu_store(uint64_t address, uint64_t value, int bytes, int line);
void sk_emu_copy_in(void* local, uint64_t address, uint64_t bytes);
void sk_emu_copy_out(uint64_t address, const void* local, uint64_t bytes);
void sk_emu_dcci(uint64_t address, int entire, int destination, int line);
void sk_emu_pipe_barrier(int pipe, int line);

// code, time, ends
void sk_emu_preload(const void* function, int64_t lines, int line);
uint64_t sk_emu_clock(void);
void sk_emu_work(uint64_t ticks);
[[noreturn]] void sk_emu_trap(int line);
[[noreturn]] void sk_emu_fail(const char* text);

// calls of sub-kernels: every call of the entry goes through a wrapper that says which function and copy it is
void sk_emu_call_context(uint32_t blocks, int32_t wait_pair, int32_t arrives, uint64_t feed_word);
void sk_emu_dump_context(uint64_t address);
void sk_emu_call(const char* function, int copy, uint64_t first_slot, void (*body)(uint64_t));
void sk_emu_call_with(const char* function, int copy, const uint64_t* pointers, int count, void (*body)(const uint64_t*));
// in place of a sub-kernel whose code is for another processor
void sk_emu_stand_in_body(uint64_t first_slot);
void sk_emu_stand_in_with(const uint64_t* pointers);
int64_t sk_emu_op_block(void);
int64_t sk_emu_op_blocks(void);
int64_t sk_emu_op_sub_block(void);
int64_t sk_emu_op_sub_blocks(void);
enum { SK_REACHED_WAIT, SK_REACHED_SET, SK_REACHED_BARRIER };  // by the text of subkernel.h
void sk_emu_reached(int point);
void sk_emu_sync_all(void);
void sk_emu_wait_previous(void);
void sk_emu_set_next(void);
uint64_t sk_emu_dump(void);

struct SkFunction {  // a sub-kernel symbol that the entry refers to, and where its wrapper is
    const char* name;
    const void* address;
};
}
