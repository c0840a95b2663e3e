// check_calls.h: included once by the entry of a checked super kernel: the functions that instrumented code calls.
#pragma once

#include "check.h"

namespace sk {
thread_local Checker checker = {};
}  // namespace sk

extern "C" {

void __tsan_init(void) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void) {}

#define SK_CHECK_SIZE(bytes)                                                              \
    void __tsan_read##bytes(void* at) { sk::check_read(at, bytes); }                      \
    void __tsan_write##bytes(void* at) { sk::check_write(at, bytes); }                    \
    void __tsan_volatile_read##bytes(void* at) { sk::check_read(at, bytes); }             \
    void __tsan_volatile_write##bytes(void* at) { sk::check_write(at, bytes); }           \
    void __tsan_unaligned_read##bytes(void* at) { sk::check_read(at, bytes); }            \
    void __tsan_unaligned_write##bytes(void* at) { sk::check_write(at, bytes); }
SK_CHECK_SIZE(1)
SK_CHECK_SIZE(2)
SK_CHECK_SIZE(4)
SK_CHECK_SIZE(8)
SK_CHECK_SIZE(16)
#undef SK_CHECK_SIZE

void __tsan_read_range(void* at, unsigned long bytes) { sk::check_read(at, bytes); }
void __tsan_write_range(void* at, unsigned long bytes) { sk::check_write(at, bytes); }
void __tsan_vptr_read(void** at) { sk::check_read(at, sizeof *at); }
void __tsan_vptr_update(void** at, void*) { sk::check_write(at, sizeof *at); }

void* sk_checked_memcpy(void* to, const void* from, unsigned long bytes) {
    sk::check_read(from, bytes);
    sk::check_write(to, bytes);
    return std::memcpy(to, from, bytes);
}
void* sk_checked_memmove(void* to, const void* from, unsigned long bytes) {
    sk::check_read(from, bytes);
    sk::check_write(to, bytes);
    return std::memmove(to, from, bytes);
}
void* sk_checked_memset(void* to, int value, unsigned long bytes) {
    sk::check_write(to, bytes);
    return std::memset(to, value, bytes);
}
int sk_checked_memcmp(const void* first, const void* second, unsigned long bytes) {
    sk::check_read(first, bytes);
    sk::check_read(second, bytes);
    return std::memcmp(first, second, bytes);
}

#define SK_CHECK_MODIFY(T, bits, name)                                           \
    T __tsan_atomic##bits##_##name(volatile T* at, T value, int) {               \
        sk::check_read(at, sizeof(T));                                           \
        sk::check_write(at, sizeof(T));                                          \
        return __atomic_##name(at, value, __ATOMIC_SEQ_CST);                     \
    }
#define SK_CHECK_EXCHANGE(T, bits, strength, weak)                                                                \
    int __tsan_atomic##bits##_compare_exchange_##strength(volatile T* at, T* expected, T value, int, int) {       \
        sk::check_read(at, sizeof(T));                                                                            \
        sk::check_write(at, sizeof(T));                                                                           \
        return __atomic_compare_exchange_n(at, expected, value, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
    }
#define SK_CHECK_ATOMIC(T, bits)                                      \
    T __tsan_atomic##bits##_load(const volatile T* at, int) {         \
        sk::check_read(at, sizeof(T));                                \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                 \
    }                                                                 \
    void __tsan_atomic##bits##_store(volatile T* at, T value, int) {  \
        sk::check_write(at, sizeof(T));                               \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                \
    }                                                                 \
    T __tsan_atomic##bits##_exchange(volatile T* at, T value, int) {  \
        sk::check_read(at, sizeof(T));                                \
        sk::check_write(at, sizeof(T));                               \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);      \
    }                                                                 \
    SK_CHECK_MODIFY(T, bits, fetch_add)                               \
    SK_CHECK_MODIFY(T, bits, fetch_sub)                               \
    SK_CHECK_MODIFY(T, bits, fetch_and)                               \
    SK_CHECK_MODIFY(T, bits, fetch_or)                                \
    SK_CHECK_MODIFY(T, bits, fetch_xor)                               \
    SK_CHECK_MODIFY(T, bits, fetch_nand)                              \
    SK_CHECK_EXCHANGE(T, bits, strong, false)                         \
    SK_CHECK_EXCHANGE(T, bits, weak, true)
SK_CHECK_ATOMIC(uint8_t, 8)
SK_CHECK_ATOMIC(uint16_t, 16)
SK_CHECK_ATOMIC(uint32_t, 32)
SK_CHECK_ATOMIC(uint64_t, 64)
#undef SK_CHECK_ATOMIC
#undef SK_CHECK_EXCHANGE
#undef SK_CHECK_MODIFY

void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

}  // extern "C"
