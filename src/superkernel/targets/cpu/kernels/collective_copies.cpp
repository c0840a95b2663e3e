// collective_copies.cpp: the parts of collectives that move bytes: publish into this rank's slot, gather from all slots.
//
// Compiled with SK_SPLITS and SK_OUT_SPLITS, the rows of this rank's tensors that go to and come from each rank, for
// all_to_all kernels alone. Blocks divide the bytes.
#include <stdio.h>

#include "collective_slots.h"

// Bytes of x into this rank's slot, at the same places, without [skipped, skipped_end): no other rank reads those.
extern "C" void publish(const char* x, char* window, int64_t bytes, int64_t skipped, int64_t skipped_end, int64_t rank,
                        int64_t ranks, int64_t past_caches) {
    char* const slot = Slots(window, rank, ranks).of(rank);
    const Range share = byte_share(bytes);
    copy_shared(share, slot, 0, skipped, x, past_caches != 0);
    copy_shared(share, slot, skipped_end, bytes, x + skipped_end, past_caches != 0);
    if (past_caches) order_stores_past_caches();
}

// all_gather: part r of y is the beginning of slot r; this rank's part is x.
extern "C" void gather(const char* x, const char* window, char* y, int64_t part_bytes, int64_t rank, int64_t ranks,
                       int64_t past_caches) {
    const Slots slots(window, rank, ranks);
    const Range share = byte_share(part_bytes * ranks);
    for (int64_t other = 0; other < ranks; ++other)
        copy_shared(share, y, other * part_bytes, (other + 1) * part_bytes, other == rank ? x : slots.of(other),
                    past_caches != 0);
    if (past_caches) order_stores_past_caches();
}

// The last part of all_reduce: y, of `bytes`, has `part_bytes` of each rank; this rank's part is there already.
extern "C" void gather_others(const char* window, char* y, int64_t bytes, int64_t part_bytes, int64_t rank,
                              int64_t ranks, int64_t past_caches) {
    const Slots slots(window, rank, ranks);
    const int64_t begin = least(rank * part_bytes, bytes), end = least((rank + 1) * part_bytes, bytes);
    // The blocks divide the bytes that are missing, as if they lay side by side.
    const Range missing = byte_share(bytes - (end - begin));
    const Range before = {missing.begin, least(missing.end, begin)};
    const Range behind = {most(missing.begin, begin) + end - begin, missing.end + end - begin};
    for (int64_t other = 0; other < ranks; ++other) {
        if (other == rank) continue;
        const int64_t from = least(other * part_bytes, bytes), to = least((other + 1) * part_bytes, bytes);
        copy_shared(other < rank ? before : behind, y, from, to, slots.of(other), past_caches != 0);
    }
    if (past_caches) order_stores_past_caches();
}

// broadcast: y is the slot of the source; on the source itself it is x.
extern "C" void take(const char* x, const char* window, char* y, int64_t bytes, int64_t source, int64_t rank,
                     int64_t ranks, int64_t past_caches) {
    const Slots slots(window, rank, ranks);
    copy_shared(byte_share(bytes), y, 0, bytes, source == rank ? x : slots.of(source), past_caches != 0);
    if (past_caches) order_stores_past_caches();
}

// A group of one rank: y is x.
extern "C" void copy_tensor(const char* x, char* y, int64_t bytes) {
    copy_shared(byte_share(bytes), y, 0, bytes, x, false);
}

#ifdef SK_SPLITS

namespace {

constexpr int64_t kRowsTo[] = {SK_SPLITS};
constexpr int64_t kRowsFrom[] = {SK_OUT_SPLITS};

struct Part {
    int64_t begin, end;
};

// Where the rows of a rank lie in a tensor, in bytes.
SK_INLINE Part part_of_rank(const int64_t* rows, int64_t rank, int64_t row_bytes) {
    int64_t begin = 0;
    for (int64_t other = 0; other < rank; ++other) begin += rows[other];
    return {begin * row_bytes, (begin + rows[rank]) * row_bytes};
}

}  // namespace

// The slot has the part of every rank as a table of `table_bytes`, then x without this rank's part, at the same places.
extern "C" void publish_splits(const char* x, char* window, int64_t bytes, int64_t row_bytes, int64_t table_bytes,
                               int64_t rank, int64_t ranks, int64_t past_caches) {
    char* const slot = Slots(window, rank, ranks).of(rank);
    if (sk::block_idx() == 0) {
        Part* const table = reinterpret_cast<Part*>(slot);
        for (int64_t other = 0; other < ranks; ++other) table[other] = part_of_rank(kRowsTo, other, row_bytes);
    }
    const Part mine = part_of_rank(kRowsTo, rank, row_bytes);
    const Range share = byte_share(bytes);
    copy_shared(share, slot + table_bytes, 0, mine.begin, x, past_caches != 0);
    copy_shared(share, slot + table_bytes, mine.end, bytes, x + mine.end, past_caches != 0);
    if (past_caches) order_stores_past_caches();
}

// Part r of y is what slot r has for this rank; this rank's part comes from x.
extern "C" void gather_splits(const char* x, const char* window, char* y, int64_t bytes, int64_t row_bytes,
                              int64_t table_bytes, int64_t rank, int64_t ranks, int64_t past_caches) {
    const Slots slots(window, rank, ranks);
    const Range share = byte_share(bytes);
    for (int64_t other = 0; other < ranks; ++other) {
        const Part to = part_of_rank(kRowsFrom, other, row_bytes);
        const char* slot = slots.of(other);
        const Part from = other == rank ? part_of_rank(kRowsTo, rank, row_bytes) : reinterpret_cast<const Part*>(slot)[rank];
        if (from.end - from.begin != to.end - to.begin) {
            char message[160];
            snprintf(message, sizeof message, "the rank at place %d of the group sends %lld bytes, and the rank at place %d expects %lld: "
                     "their splits differ", int(other), static_cast<long long>(from.end - from.begin), int(rank),
                     static_cast<long long>(to.end - to.begin));
            sk::fail(message);
            return;
        }
        copy_shared(share, y, to.begin, to.end, (other == rank ? x : slot + table_bytes) + from.begin, past_caches != 0);
    }
    if (past_caches) order_stores_past_caches();
}

#endif
