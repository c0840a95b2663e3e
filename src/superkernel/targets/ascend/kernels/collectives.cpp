// collectives.cpp: collectives of ranks on emulated chips. On a real chip their place is taken by compiled operators.
//
// A window has a slot for each rank, `stride` bytes apart. A rank publishes its contribution in its own slot; when all
// have, each reads what it needs of all slots. Elements are reduced in the order of the ranks, so that all ranks get the
// same bits.
//     SK_ELEMENT                      the type of an element
//     SK_SUM, SK_AVG, SK_MAX, ...     the reduction
#include <superkernel/host_kernel.h>

#include <cstdint>
#include <cstring>

#ifndef SK_ELEMENT
#define SK_ELEMENT uint8_t
#endif

namespace {

constexpr int64_t kPart = 1024;  // bytes in local memory
constexpr int64_t kUnit = 32;    // bytes: what a transfer moves at least

struct Bfloat16 {
    uint16_t bits;
    operator float() const {
        uint32_t wide = uint32_t(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }
};

template <class T>
struct Computed {  // what elements are reduced in
    using type = T;
    static T rounded(T value) { return value; }
};
template <>
struct Computed<Bfloat16> {
    using type = float;
    static Bfloat16 rounded(float value) {
        uint32_t wide;
        std::memcpy(&wide, &value, sizeof wide);
        if (value != value) return {uint16_t(wide >> 16 | 0x40)};
        return {uint16_t((wide + 0x7FFF + (wide >> 16 & 1)) >> 16)};
    }
};

template <class C>
C reduced(C a, C b) {
#if defined(SK_MAX)
    return b > a || b != b ? b : a;
#elif defined(SK_MIN)
    return b < a || b != b ? b : a;
#elif defined(SK_PRODUCT)
    return a * b;
#else
    return a + b;
#endif
}

// The part of `bytes` bytes that this block has: parts are whole units.
struct Share {
    int64_t begin, end;
    explicit Share(int64_t bytes) {
        int64_t units = (bytes + kUnit - 1) / kUnit, blocks = sk::block_num(), block = sk::block_idx();
        begin = units * block / blocks * kUnit;
        end = units * (block + 1) / blocks * kUnit;
        if (end > bytes) end = bytes;
    }
};

// Bytes from one place in global memory to another, through local memory.
void copy(sk::gm<char> to, sk::gm<char> from, int64_t bytes) {
    char local[kPart];
    for (int64_t at = 0; at < bytes; at += kPart) {
        int64_t count = bytes - at < kPart ? bytes - at : kPart;
        (from + at).copy_in(local, count);
        (to + at).copy_out(local, count);
    }
}

int64_t number(uint64_t first_slot, int parameter) { return sk::scalar<int64_t>(first_slot, parameter); }

}  // namespace

extern "C" {

// x, window; bytes, stride, rank
void publish(uint64_t first_slot) {
    auto x = sk::buffer<char>(first_slot, 0), window = sk::buffer<char>(first_slot, 1);
    int64_t bytes = number(first_slot, 2), stride = number(first_slot, 3), rank = number(first_slot, 4);
    Share share(bytes);
    copy(window + (rank * stride + share.begin), x + share.begin, share.end - share.begin);
}

// window, y; count of elements, the first element of each slot, stride, ranks
void reduce(uint64_t first_slot) {
    using Element = SK_ELEMENT;
    using Sum = Computed<Element>::type;
    auto window = sk::buffer<char>(first_slot, 0), y = sk::buffer<char>(first_slot, 1);
    int64_t count = number(first_slot, 2), first = number(first_slot, 3), stride = number(first_slot, 4);
    int64_t ranks = number(first_slot, 5);
    constexpr int64_t size = sizeof(Element), most = kPart / size;
    Share share(count * size);
    Element given[most];
    Sum sums[most];
    for (int64_t at = share.begin; at < share.end; at += kPart) {
        int64_t elements = (share.end - at < kPart ? share.end - at : kPart) / size;
        for (int64_t rank = 0; rank < ranks; ++rank) {
            (window + (rank * stride + first * size + at)).copy_in(reinterpret_cast<char*>(given), elements * size);
            for (int64_t i = 0; i < elements; ++i) sums[i] = rank ? Sum(reduced<Sum>(sums[i], given[i])) : Sum(given[i]);
        }
        for (int64_t i = 0; i < elements; ++i) {
#if defined(SK_AVG)
            sums[i] = Sum(sums[i] / Sum(ranks));
#endif
            given[i] = Computed<Element>::rounded(sums[i]);
        }
        (y + at).copy_out(reinterpret_cast<const char*>(given), elements * size);
    }
}

// window, y; bytes that each rank gives this one, where they begin in its slot, stride, ranks
void gather(uint64_t first_slot) {
    auto window = sk::buffer<char>(first_slot, 0), y = sk::buffer<char>(first_slot, 1);
    int64_t bytes = number(first_slot, 2), first = number(first_slot, 3), stride = number(first_slot, 4);
    int64_t ranks = number(first_slot, 5);
    Share share(bytes * ranks);
    for (int64_t at = share.begin; at < share.end;) {
        int64_t rank = at / bytes, inside = at % bytes;
        int64_t here = bytes - inside < share.end - at ? bytes - inside : share.end - at;
        copy(y + at, window + (rank * stride + first + inside), here);
        at += here;
    }
}

// window, y; stride, ranks, then for each rank: where its part for this rank begins in its slot, and its bytes
void gather_parts(uint64_t first_slot) {
    auto window = sk::buffer<char>(first_slot, 0), y = sk::buffer<char>(first_slot, 1);
    int64_t stride = number(first_slot, 2), ranks = number(first_slot, 3), whole = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) whole += number(first_slot, int(5 + 2 * rank));
    Share share(whole);
    int64_t begin = 0;  // of the part of a rank in y
    for (int64_t rank = 0; rank < ranks; ++rank) {
        int64_t first = number(first_slot, int(4 + 2 * rank)), end = begin + number(first_slot, int(5 + 2 * rank));
        int64_t from = share.begin > begin ? share.begin : begin, to = share.end < end ? share.end : end;
        if (from < to) copy(y + from, window + (rank * stride + first + from - begin), to - from);
        begin = end;
    }
}
}
