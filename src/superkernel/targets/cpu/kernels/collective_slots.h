// collective_slots.h: the slots of a window as a kernel of a collective sees them, and copies of bytes between them.
#pragma once

#include <superkernel/window.h>

#include "block_share.h"

namespace {

typedef float ByteVector __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));
typedef float AlignedVector __attribute__((vector_size(kVectorBytes), may_alias));
constexpr int64_t kLineBytes = 64;

SK_INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
SK_INLINE int64_t most(int64_t x, int64_t y) { return x > y ? x : y; }

// Past the caches: for data that is larger than they are.
SK_INLINE void store_past_caches(char* at, Vector value) {
#if defined(__clang__)
    __builtin_nontemporal_store(value, reinterpret_cast<AlignedVector*>(at));
#elif defined(__AVX512F__) && SK_HAS(__builtin_ia32_movntps512)
    __builtin_ia32_movntps512(reinterpret_cast<float*>(at), value);
#elif defined(__AVX__) && !defined(__AVX512F__) && SK_HAS(__builtin_ia32_movntps256)
    __builtin_ia32_movntps256(reinterpret_cast<float*>(at), value);
#else
    *reinterpret_cast<AlignedVector*>(at) = value;
#endif
}

// Stores past the caches are not ordered by a release; this orders them before everything that follows.
SK_INLINE void order_stores_past_caches() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_sfence();
#endif
}

template <bool PastCaches>
SK_INLINE void copy_vectors(char* to, const char* from, int64_t vectors) {
    for (int64_t i = 0; i < vectors; ++i, to += kVectorBytes, from += kVectorBytes) {
        const Vector value = *reinterpret_cast<const ByteVector*>(from);
        if (PastCaches) store_past_caches(to, value);
        else *reinterpret_cast<ByteVector*>(to) = value;
    }
}

SK_NOINLINE void copy_bytes(char* to, const char* from, int64_t bytes, bool past_caches) {
    if (to == from) return;
    if (past_caches) {
        const int64_t head = least(bytes, -reinterpret_cast<intptr_t>(to) & (kVectorBytes - 1));
        __builtin_memcpy(to, from, head);
        to += head, from += head, bytes -= head;
        copy_vectors<true>(to, from, bytes / kVectorBytes);
    } else {
        copy_vectors<false>(to, from, bytes / kVectorBytes);
    }
    const int64_t done = bytes / kVectorBytes * kVectorBytes;
    if (done < bytes) __builtin_memcpy(to + done, from + done, bytes - done);
}

// The slots of the round that this rank is in.
struct Slots {
    char* first;
    int64_t stride;

    SK_INLINE Slots(const void* window, int64_t rank, int64_t ranks) {
        const uint32_t round = sk::round_of(window, uint32_t(rank));
        stride = int64_t(sk::stride_of(window, uint32_t(rank)));
        first = const_cast<char*>(sk::slot(window, uint32_t(ranks), uint64_t(stride), round, 0));
    }
    SK_INLINE char* of(int64_t rank) const { return first + rank * stride; }
};

// The bytes of `total` that belong to this block: whole cache lines.
SK_INLINE Range byte_share(int64_t total) {
    const Range lines = block_share((total + kLineBytes - 1) / kLineBytes);
    return {lines.begin * kLineBytes, least(lines.end * kLineBytes, total)};
}

// What of [begin, end) of a result lies in this block's share is copied from `from`, which holds all of it.
SK_INLINE void copy_shared(const Range& share, char* result, int64_t begin, int64_t end, const char* from,
                           bool past_caches) {
    const int64_t low = most(share.begin, begin), high = least(share.end, end);
    if (low < high) copy_bytes(result + low, from + (low - begin), high - low, past_caches);
}

}  // namespace
