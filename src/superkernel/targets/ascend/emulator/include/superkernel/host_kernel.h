// host_kernel.h: what a sub-kernel for the emulated chip may ask. A sub-kernel is
//
//     extern "C" void add(uint64_t first_slot) {   // an index into the parameter block
//         auto x = sk::buffer<float>(first_slot, 0);   // parameter 0
//         ...
//     }
//
// or takes its pointers, and then reaches memory by sk::gm<float>(x):
//
//     extern "C" __global__ __aicore__ void add(GM_ADDR x, GM_ADDR y, GM_ADDR z) { ... }
//
// It is compiled once for cube cores (sk::is_cube() is true) and once for vector cores. Memory is reached in two ways, as on
// the chip: element by element through the data cache of the core, which is not coherent (dcci cleans it, or an option
// that makes the entry do it), and in bulk by the transfer engines, which go past it and need a pipe_barrier.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <string>
#include <type_traits>

#include "../kernel_operator.h"

namespace sk {

inline int64_t block_idx() { return sk_emu_op_block(); }   // of this op
inline int64_t block_num() { return sk_emu_op_blocks(); }  // of this op; what the control agent said, if dynamic
inline int64_t sub_block_idx() { return sk_emu_op_sub_block(); }  // which of a block's vector cores, in a 1:2 op
inline int64_t sub_block_num() { return sk_emu_op_sub_blocks(); }
inline bool is_cube() { return sk_emu_is_cube() != 0; }

inline void sync_all() { sk_emu_sync_all(); }            // all cores of this op have come here
inline void wait_previous() { sk_emu_wait_previous(); }  // what this op reads has been stored
inline void set_next() { sk_emu_set_next(); }            // this core will not touch memory any more
inline void pipe_barrier() { ::pipe_barrier(PIPE_ALL); }  // all transfers of this core have landed
inline void work(uint64_t ticks) { sk_emu_work(ticks); }  // time passes
[[noreturn]] inline void fail(const char* message) { sk_emu_fail(message); }

// The 64-bit word of a parameter: an address, or the bits of a scalar.
inline uint64_t slot(uint64_t first_slot, int number) {
    return sk_emu_load(sk_emu_para_base() + 8 * (first_slot + static_cast<uint64_t>(number)), 8, 0);
}
template <class T>
T scalar(uint64_t first_slot, int number) {
    uint64_t bits = slot(first_slot, number);
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

// Elements in global memory.
template <class T>
class gm {
    static_assert(std::is_trivially_copyable<T>::value, "global memory holds plain values");

public:
    explicit gm(uint64_t address) : address_(address) {}
    explicit gm(const void* pointer) : address_(reinterpret_cast<uint64_t>(pointer)) {}
    uint64_t address() const { return address_; }
    gm operator+(int64_t elements) const { return gm(address_ + static_cast<uint64_t>(elements) * sizeof(T)); }

    // through the data cache
    T load(int64_t index) const {
        uint64_t bits = sk_emu_load((*this + index).address_, sizeof(T), 0);
        T value;
        __builtin_memcpy(&value, &bits, sizeof(T));
        return value;
    }
    void store(int64_t index, T value) const {
        uint64_t bits = 0;
        __builtin_memcpy(&bits, &value, sizeof(T));
        sk_emu_store((*this + index).address_, bits, sizeof(T), 0);
    }
    void dcci(int64_t index) const { sk_emu_dcci((*this + index).address_, 0, CACHELINE_OUT, 0); }  // clean and invalidate one line

    // by the transfer engines
    void copy_in(T* local, int64_t count) const { sk_emu_copy_in(local, address_, static_cast<uint64_t>(count) * sizeof(T)); }
    void copy_out(const T* local, int64_t count) const {
        sk_emu_copy_out(address_, local, static_cast<uint64_t>(count) * sizeof(T));
    }

private:
    uint64_t address_;
};

inline void dcci_all() { sk_emu_dcci(0, 1, CACHELINE_OUT, 0); }  // clean and invalidate the whole data cache

template <class T>
gm<T> buffer(uint64_t first_slot, int number) {
    return gm<T>(slot(first_slot, number));
}

// Appends to this core's part of the dump area, if the kernel has one; what does not fit is left out.
__attribute__((format(printf, 1, 2))) inline void print(const char* format, ...) {
    uint64_t area = sk_emu_dump();
    if (area == 0) return;
    char text[512] = {};
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (wanted <= 0) return;
    constexpr uint64_t header = 64;
    gm<uint64_t> head(area);
    uint64_t room = head.load(1), used = head.load(2), length = static_cast<uint64_t>(wanted);
    if (length >= sizeof text) length = sizeof text - 1;
    if (length > room - used) length = room - used;
    gm<char> body(area + header + used);
    for (uint64_t i = 0; i < length; ++i) body.store(static_cast<int64_t>(i), text[i]);
    head.store(2, used + length);
    for (uint64_t at = area; at < area + header + used + length; at += 64) gm<char>(at).dcci(0);
}

}  // namespace sk
