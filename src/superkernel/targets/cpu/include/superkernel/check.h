// check.h: debug-check=1: every access of an instrumented sub-kernel is compared with what the sub-kernel declares.
//
// Sub-kernels are compiled with -fsanitize=thread, whose calls (__tsan_read4 and so on) end here; the library of that
// sanitizer is not linked. Only memory of the launch is checked: what is outside of all slabs is not the caller's.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check_tables.h"
#include "state.h"

namespace sk {

// Of one slab and the running block: what may be read and written without a closer look.
struct CheckedSpan {
    uint64_t read_begin, read_end, write_begin, write_end;
};

// A parameter of the running block.
struct CheckedRange {
    const CheckedSlot* slot;
    uint64_t address;              // of the parameter
    uint64_t whole_end;            // where it ends
    uint64_t begin, end;           // what this block may touch
    int32_t slab;
};

struct CheckedCopy {
    uint64_t from, to;
};

// What the running thread checks against.
struct Checker {
    uint64_t base, total, shadow, guard, guard_bytes;
    CheckedSpan* spans;
    int32_t shift;
    uint8_t stamp;
    bool waited, signalled;

    Launch* launch;
    const CheckTables* tables;
    uint32_t step;
    int block;
    int blocks;
    CheckedRange* ranges;
    int range_count, range_room, span_room;
    CheckedCopy* copies;
    int copy_count, copy_room;

    void start(Launch& with);
    void begin(uint32_t at, int index, int count);
    void moved(uint64_t from, uint64_t to);
    void wait();
    void signal();
    void read_closely(uint64_t at, uint64_t bytes);
    void write_closely(uint64_t at, uint64_t bytes);

  private:
    void set_ranges();
    void set_spans();
    const CheckedRange* nearest(uint64_t at) const;
    [[noreturn]] void violation(uint64_t at, uint64_t bytes, bool write);
    const char* reason(const CheckedRange& range, uint64_t at, uint64_t bytes, bool write, char* text, size_t room) const;
};

extern thread_local Checker checker;

inline bool inside(uint64_t at, uint64_t bytes, uint64_t begin, uint64_t end) { return at >= begin && at + bytes <= end; }

template <class T>
inline void grow(T*& array, int& room, int wanted) {
    if (wanted <= room) return;
    room = std::max(wanted, 2 * room);
    array = static_cast<T*>(std::realloc(static_cast<void*>(array), sizeof(T) * size_t(room)));
    if (array == nullptr) std::abort();
}

inline void Checker::start(Launch& with) {
    launch = &with;
    tables = with.check;
    grow(spans, span_room, tables->slabs);
    std::memset(static_cast<void*>(spans), 0, sizeof(CheckedSpan) * size_t(tables->slabs));
    base = tables->base, total = tables->total, shadow = tables->shadow, shift = tables->shift;
    guard = tables->guard, guard_bytes = tables->guard_bytes;
    copy_count = range_count = 0;
}

inline void Checker::begin(uint32_t at, int index, int count) {
    step = at, block = index, blocks = count;
    const CheckedStep& now = tables->steps[step];
    stamp = now.stamp;
    waited = now.waits == 0;
    signalled = false;
    set_ranges();
}

// The core computes a copy of a replicated buffer, or reads it.
inline void Checker::moved(uint64_t from, uint64_t to) {
    for (int i = 0; i < copy_count; ++i) {
        if (copies[i].from == from && copies[i].to == to) return;
    }
    grow(copies, copy_room, copy_count + 1);
    copies[copy_count++] = {from, to};
    if (range_count != 0) set_ranges();
}

inline void Checker::wait() {
    if (waited) return;
    waited = true;
    set_spans();
}

inline void Checker::signal() {
    if (tables->steps[step].signals == 0) return;
    signalled = true;
    set_spans();
}

inline void Checker::set_ranges() {
    const CheckedStep& now = tables->steps[step];
    for (int i = 0; i < range_count; ++i) spans[ranges[i].slab] = {};
    grow(ranges, range_room, now.count);
    range_count = 0;
    for (int32_t i = now.first; i < now.first + now.count; ++i) {
        const CheckedSlot& slot = tables->slots[i];
        if (slot.buffer < 0) continue;
        uint64_t address = launch->slots[i];
        const uint64_t left = tables->end[slot.buffer] - std::min(address, tables->end[slot.buffer]);
        const uint64_t bytes = slot.bytes < 0 ? left : uint64_t(slot.bytes);
        for (int c = 0; c < copy_count; ++c) {
            if (copies[c].from == address) address = copies[c].to;
        }
        uint64_t begin = address, end = address + bytes;
        if (slot.parts != 0 && now.blocks > 0 && bytes % uint64_t(now.blocks) == 0) {
            const uint64_t part = bytes / uint64_t(now.blocks);
            begin = address + part * uint64_t(block);
            end = begin + part;
        }
        ranges[range_count++] = {&slot, address, address + bytes, begin, end, int32_t((address - base) >> shift)};
    }
    set_spans();
}

// Two parameters may be one buffer: the first gives the span, the others are found by a closer look.
inline void Checker::set_spans() {
    for (int i = 0; i < range_count; ++i) spans[ranges[i].slab] = {};
    if (signalled) return;
    for (int i = range_count - 1; i >= 0; --i) {
        const CheckedRange& range = ranges[i];
        CheckedSpan& span = spans[range.slab];
        if (range.slot->reads != 0 && (waited || range.slot->early != 0)) {
            span.read_begin = range.begin, span.read_end = range.end;
        }
        if (range.slot->writes != 0 && waited) span.write_begin = range.begin, span.write_end = range.end;
    }
}

// Bytes of an output or a workspace may be read when this op has written them.
inline void Checker::read_closely(uint64_t at, uint64_t bytes) {
    if (bytes == 0) return;
    if (!signalled) {
        for (int i = 0; i < range_count; ++i) {
            const CheckedRange& range = ranges[i];
            if (!inside(at, bytes, range.begin, range.end) || !(waited || range.slot->early != 0)) continue;
            if (range.slot->reads != 0) return;
            const auto* written = reinterpret_cast<const uint8_t*>(at - base + shadow);
            if (std::all_of(written, written + bytes, [this](uint8_t by) { return by == stamp; })) return;
        }
    }
    violation(at, bytes, false);
}

inline void Checker::write_closely(uint64_t at, uint64_t bytes) {
    if (bytes == 0) return;
    if (!signalled && waited) {
        for (int i = 0; i < range_count; ++i) {
            if (ranges[i].slot->writes != 0 && inside(at, bytes, ranges[i].begin, ranges[i].end)) {
                std::memset(reinterpret_cast<void*>(at - base + shadow), stamp, bytes);
                return;
            }
        }
    }
    violation(at, bytes, true);
}

// The parameter that an access was probably meant for: one that holds it, or the one that is least far away.
inline const CheckedRange* Checker::nearest(uint64_t at) const {
    const CheckedRange* found = nullptr;
    uint64_t distance = ~uint64_t(0);
    for (int i = 0; i < range_count; ++i) {
        const CheckedRange& range = ranges[i];
        const uint64_t far = at < range.address ? range.address - at : at >= range.whole_end ? at - range.whole_end + 1 : 0;
        if (far < distance) distance = far, found = &range;
    }
    return found;
}

inline const char* Checker::reason(
    const CheckedRange& range, uint64_t at, uint64_t bytes, bool write, char* text, size_t room) const {
    if (!inside(at, bytes, range.address, range.whole_end)) {
        std::snprintf(text, room, "outside of its %llu bytes", (unsigned long long)(range.whole_end - range.address));
    } else if (write && range.slot->writes == 0) {
        return "which it only reads";
    } else if (!inside(at, bytes, range.begin, range.end)) {
        std::snprintf(text, room, "outside of the part of this block, bytes %llu to %llu",
                      (unsigned long long)(range.begin - range.address), (unsigned long long)(range.end - range.address));
    } else if (signalled) {
        return "after set_next()";
    } else if (!waited) {
        return write ? "before wait_previous()" : "before wait_previous(), and early_start does not name it";
    } else {
        return "which this op has not written before";
    }
    return text;
}

inline void Checker::violation(uint64_t at, uint64_t bytes, bool write) {
    char why[160], message[kFailureBytes];
    const CheckedRange* range = nearest(at);
    const char* const did = write ? "writes" : "reads";
    if (range == nullptr) {
        std::snprintf(message, sizeof message, "debug-check: block %d of %d %s %llu bytes of the launch, and has no memory",
                      block, blocks, did, (unsigned long long)bytes);
    } else {
        const char* const because = reason(*range, at, bytes, write, why, sizeof why);
        std::snprintf(message, sizeof message,
                      "debug-check: block %d of %d %s %llu bytes at offset %lld of parameter '%s' (%s), %s", block, blocks,
                      did, (unsigned long long)bytes, (long long)(at - range->address), range->slot->name,
                      range->slot->declared, because);
    }
    launch->fail(step, message);
    total = guard_bytes = 0;  // what runs while this thread leaves is not checked
    launch->leave();
    __builtin_unreachable();
}

inline void check_read(uint64_t at, uint64_t bytes) {
    Checker& with = checker;
    const uint64_t offset = at - with.base;
    if (offset >= with.total) {
        if (at - with.guard < with.guard_bytes) with.read_closely(at, bytes);
        return;
    }
    const CheckedSpan& span = with.spans[offset >> with.shift];
    if (!inside(at, bytes, span.read_begin, span.read_end)) with.read_closely(at, bytes);
}

inline void check_write(uint64_t at, uint64_t bytes) {
    Checker& with = checker;
    const uint64_t offset = at - with.base;
    if (offset >= with.total) {
        if (at - with.guard < with.guard_bytes) with.write_closely(at, bytes);
        return;
    }
    const CheckedSpan& span = with.spans[offset >> with.shift];
    if (inside(at, bytes, span.write_begin, span.write_end)) {
        std::memset(reinterpret_cast<void*>(offset + with.shadow), with.stamp, bytes);
    } else {
        with.write_closely(at, bytes);
    }
}

inline void check_read(const volatile void* at, uint64_t bytes) { check_read(reinterpret_cast<uint64_t>(at), bytes); }
inline void check_write(const volatile void* at, uint64_t bytes) { check_write(reinterpret_cast<uint64_t>(at), bytes); }

}  // namespace sk
