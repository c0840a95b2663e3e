// report.cpp: what went wrong, in words: which op on which SM and slot, at which line, and where its addresses lead.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "machine.h"

namespace ptx {

// 1 + the op that a warp is in; 0: none.
uint32_t Machine::op_number(Warp& warp) const {
    if (settings.task_register == kNone) return 1;
    uint32_t lanes = warp.mask ? warp.mask : warp.lanes_begun;
    uint64_t task = warp.lanes<uint64_t>(settings.task_register)[__builtin_ctz(lanes)];
    if (task != warp.task) {
        auto found = op_of_task.find({warp.block->linear, task});
        warp.task = task, warp.task_op = found == op_of_task.end() ? 0 : found->second;
    }
    return warp.task_op;
}

std::string Machine::op(uint32_t number) const {
    if (!number || number > op_names.size()) return "the task loop";
    return "op '" + op_names[number - 1] + "'";
}

std::string Machine::who(const Warp& warp) const {
    std::string of = rank.empty() ? "" : " of " + rank;
    if (settings.slot_threads) {
        uint32_t per_slot = settings.slot_threads / kLanes;
        return "SM " + std::to_string(warp.block->index) + ", slot " + std::to_string(warp.number / per_slot) + ", warp " +
               std::to_string(warp.number % per_slot) + of;
    }
    const uint32_t* id = warp.block->id;
    return "block (" + std::to_string(id[0]) + ", " + std::to_string(id[1]) + ", " + std::to_string(id[2]) + "), warp " +
           std::to_string(warp.number) + of;
}

const Warp& Machine::actor(uint32_t place) const {
    for (const Machine* other : shared->devices) {
        if (place >= other->first_actor && place - other->first_actor < other->warps.size()) return *other->warps[place - other->first_actor];
    }
    return *warps[0];
}

void Machine::fail(Warp& warp, const std::string& why) const {
    throw Failure(op(op_number(warp)) + " on " + who(warp) + " (line " + std::to_string(program[warp.at].line) + "): " + why);
}

std::string Machine::place(const Warp&, uint64_t address) const {
    for (const Label& label : labels) {
        if (address >= label.begin && address < label.end) return label.text;
    }
    uint64_t window = address / kWindow;
    if (window == uint64_t(Space::shared)) {
        uint64_t offset = address - kSharedWindow, block = offset >> 32;  // of another block, by its number + 1
        std::string of = block ? " of block " + std::to_string(block - 1) : "";
        return "byte " + std::to_string(offset & UINT32_MAX) + " of shared memory" + of;
    }
    const Range* nearest = nullptr;
    uint64_t best = UINT64_MAX;
    for (const auto& range : ranges) {
        if (address >= range->begin && address < range->end) {
            return "byte " + std::to_string(address - range->begin) + " of " + range->name;
        }
        uint64_t distance = address < range->begin ? range->begin - address : address - range->end + 1;
        if (distance < best) best = distance, nearest = range.get();
    }
    if (!nearest || best > (uint64_t(1) << 32)) return "no buffer is near";
    if (address < nearest->begin) return std::to_string(best) + " bytes before " + nearest->name;
    return "byte " + std::to_string(address - nearest->begin) + " of " + nearest->name + ", which has " + std::to_string(nearest->end - nearest->begin);
}

std::string Machine::standing(const std::string& why) const {
    std::map<std::string, std::vector<std::string>> groups;  // what they do -> warps
    for (Warp* warp : warps) {
        if (warp->state == State::done) continue;
        std::string what;
        if (warp->state == State::waiting && warp->barrier == kClusterBarrier) {
            const Cluster& cluster = *warp->block->cluster;
            what = "waits at the barrier of its cluster, where " + std::to_string(cluster.arrived) + " of " +
                   std::to_string(cluster.live) + " warps have arrived";
        } else if (warp->state == State::waiting) {
            const Barrier& barrier = warp->block->barriers[warp->barrier];
            what = "waits at barrier " + std::to_string(warp->barrier) + ", where " + std::to_string(barrier.arrived) + " of " +
                   std::to_string(barrier.expected) + " threads have arrived";
        } else if (warp->polls > 1) {
            what = "polls " + place(*warp, warp->polled) + " and sees " + std::to_string(warp->poll_value);
        } else {
            what = "runs";
        }
        groups[what + " in " + op(op_number(*warp)) + " (line " + std::to_string(program[warp->at].line) + ")"].push_back(who(*warp));
    }
    std::string text = why;
    for (const auto& [what, members] : groups) {
        text += "\n  ";
        size_t shown = std::min<size_t>(members.size(), 3);
        for (size_t k = 0; k < shown; ++k) text += (k ? "; " : "") + members[k];
        if (members.size() > shown) text += "; and " + std::to_string(members.size() - shown) + " more";
        text += ": " + what;
    }
    return text;
}

}  // namespace ptx
