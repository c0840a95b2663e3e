// table.h: the steps of a large plan as rows of tables, and the loop that walks the rows of a lane.
#pragma once

#include <cstddef>

#include "core.h"

namespace sk {

// What the running core does at a row; each is the member function of Core of that name, with these operands.
enum class Do : int16_t {
    preload,          // kernel
    prefetch,         // slot, base, width, cache lines
    await_event,      // step, slot
    notify,           // slot
    reset_event,      // slot
    notify_ranks,     // slot, rank
    await_ranks,      // step, slot, rank, ranks
    request,          // tiling
    compute_tiling,   // step, tiling, function, slot, slot of the sizes, most blocks
    select,           // step, tiling, first kernel, kernels, most blocks
    wait,             // step, stamp, first core, last core
    wait_all,         // step, counter, count
    wait_inside,      // step, stamp, first core, last core
    wait_inside_all,  // step, counter, count
    barrier,          // step, stamp, first core, last core
    signal,           // stamp, counter
    signal_early,     // stamp, counter
    meet_in,          // rendezvous, members, fed
    arguments,        // slot, count: the next call takes a copy of these slots
    replicated,       // position, area: an argument in that copy
    call,             // step, blocks, width, base, kernel, slot
    call_chosen,      // step, tiling, width, base, first kernel, slot
    feed_idle,        // step, rendezvous, members, base, width, tiling
    meeting_over,     // base, width
    end_call,         //
    feed,             // step, rendezvous, members
    fence,            //
    record,           // step
};

constexpr int kCopiedArguments = -1;  // as the slot of a call: the copy that Do::arguments made

// Cores first <= id < last take the row. `base`: the rank of a core is its id - base, modulo `width`.
struct Row {
    Do what;
    int16_t first, last;
    int32_t a, b, c, d, e, f;
};

// A function of a sub-kernel: how it is called with the slots of an op, and where its code lies, per copy.
struct Kernel {
    void (*call)(const Core& core, const uint64_t* slot);
    const void* const* code;
    int copies;
    int code_bytes;
    bool may_fail;  // the core looks after each call whether the launch goes on
};

// Calls the tiling function of a dynamic op with the op's arguments.
using TilingCall = bool (*)(Core& core, uint32_t step, int tiling, int64_t most_blocks, const uint64_t* slot,
                            const int64_t* bytes);

// Where the private copies of a replicated buffer lie.
struct Area {
    const int* copy_of;  // per core; null: core c uses copy c
    uint64_t offset, stride;
};

// What all rows of a lane refer to, and room for what they keep.
struct TableContext {
    const Kernel* kernels;
    const int64_t* keys;  // per kernel: its tiling key
    const TilingCall* tilings;
    const Area* areas;
    const uint64_t* slot;
    const int64_t* bytes;
    Choice* choices;  // per dynamic op
    int* variants;    // per dynamic op: which kernel was chosen, from its first
    uint64_t* arguments;
};

inline int rank_from(const Core& core, int base, int width) {
    const int place = core.id() - base;
    return place < width ? place : place % width;
}

inline const uint64_t* arguments_at(int slot, const TableContext& with) {
    return slot == kCopiedArguments ? with.arguments : with.slot + slot;
}

// False: the launch was stopped.
inline bool call_blocks(Core& core, const Row& row, int blocks, const Kernel& kernel, const TableContext& with) {
    const uint64_t* const slot = arguments_at(row.f, with);
    const int width = row.c;
    for (int block = rank_from(core, row.d, width); block < blocks; block += width) {
        core.begin(uint32_t(row.a), block, blocks, block + width >= blocks);
        kernel.call(core, slot);
        if (kernel.may_fail && !core.alive()) return false;
    }
    return true;
}

inline bool select_variant(Core& core, const Row& row, const TableContext& with) {
    const int64_t* const keys = with.keys + row.c;
    const Choice choice = core.select(uint32_t(row.a), row.b, keys, row.d, row.e);
    with.choices[row.b] = choice;
    with.variants[row.b] = int(std::find(keys, keys + row.d, choice.key) - keys);
    return choice.ok;
}

// One row. False: the launch was stopped.
inline bool take_row(Core& core, const Row& row, const TableContext& with) {
    const uint32_t step = uint32_t(row.a);
    switch (row.what) {
        case Do::preload: {
            const Kernel& kernel = with.kernels[row.a];
            core.preload(kernel.code[kernel.copies == 1 ? 0 : core.id() % kernel.copies], size_t(kernel.code_bytes));
            return true;
        }
        case Do::prefetch:
            core.prefetch(with.slot[row.a], with.bytes[row.a], rank_from(core, row.b, row.c), row.c, int64_t(row.d) * kLine);
            return true;
        case Do::await_event: return core.await_event(step, with.slot[row.b]);
        case Do::notify: core.notify(with.slot[row.a]); return true;
        case Do::reset_event: core.reset_event(with.slot[row.a]); return true;
        case Do::notify_ranks: core.notify_ranks(with.slot[row.a], uint32_t(row.b)); return true;
        case Do::await_ranks: return core.await_ranks(step, with.slot[row.b], uint32_t(row.c), uint32_t(row.d));
        case Do::request: core.request(row.a); return true;
        case Do::compute_tiling:
            return with.tilings[row.c](core, step, row.b, row.f, arguments_at(row.d, with), with.bytes + row.e);
        case Do::select: return select_variant(core, row, with);
        case Do::wait: return core.wait(step, uint64_t(row.b), row.c, row.d);
        case Do::wait_all: return core.wait_all(step, row.b, uint32_t(row.c));
        case Do::wait_inside: return core.wait_inside(step, uint64_t(row.b), row.c, row.d);
        case Do::wait_inside_all: return core.wait_inside_all(step, row.b, uint32_t(row.c));
        case Do::barrier: return core.barrier(step, uint64_t(row.b), row.c, row.d);
        case Do::signal:
            if (row.b == kNoCounter) {
                core.signal(uint64_t(row.a));
            } else {
                core.signal(uint64_t(row.a), row.b);
            }
            return true;
        case Do::signal_early: core.signal_early(uint64_t(row.a), row.b); return true;
        case Do::meet_in: core.meet_in(core.rendezvous(row.a), row.b, row.c != 0); return true;
        case Do::arguments: std::copy_n(with.slot + row.a, row.b, with.arguments); return true;
        case Do::replicated: {
            const Area& area = with.areas[row.b];
            const int index = area.copy_of == nullptr ? core.id() : area.copy_of[core.id()];
            with.arguments[row.a] = core.copy(with.arguments[row.a], index, area.offset, area.stride);
            return true;
        }
        case Do::call: return call_blocks(core, row, row.b, with.kernels[row.e], with);
        case Do::call_chosen:
            return call_blocks(core, row, with.choices[row.b].blocks, with.kernels[row.e + with.variants[row.b]], with);
        case Do::feed_idle: {
            const int blocks = with.choices[row.f].blocks;
            if (blocks == 0 || rank_from(core, row.d, row.e) < blocks) return true;
            return core.feed(step, core.rendezvous(row.b), row.c);
        }
        case Do::meeting_over: core.meeting_over(rank_from(core, row.a, row.b)); return true;
        case Do::end_call: return core.end_call();
        case Do::feed: return core.feed(step, core.rendezvous(row.b), row.c);
        case Do::fence: core.fence(); return true;
        case Do::record: core.record(step); return true;
    }
    return false;
}

// Everything that the running core does, in order.
__attribute__((noinline)) inline void walk(Core& core, const Row* row, size_t rows, const TableContext& with) {
    for (const Row* const end = row + rows; row != end; ++row) {
        if (core.in(row->first, row->last) && !take_row(core, *row, with)) return;
    }
}

}  // namespace sk
