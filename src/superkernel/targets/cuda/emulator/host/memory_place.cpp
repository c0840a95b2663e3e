// memory_place.cpp: an address of one lane -> its place, with bounds and declarations checked; accesses are recorded.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "memory_place.h"

namespace ptx {

namespace {

std::string hex(uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "0x%" PRIx64, value);
    return text;
}

std::string bytes_text(uint32_t bytes) { return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes"); }

void check_slot(Warp& warp, uint64_t offset, uint32_t bytes, const char* doing) {
    Machine& m = *warp.machine;
    const Settings& s = m.settings;
    uint64_t end = s.slot_areas + uint64_t(s.slots) * s.slot_bytes;
    if (!s.slot_bytes || offset + bytes <= s.slot_areas || offset >= end) return;
    uint64_t slot = warp.number * kLanes / s.slot_threads;
    uint64_t first = s.slot_areas + slot * s.slot_bytes, ring_end = s.slot_areas + s.ring_bytes;
    if (offset < ring_end) {
        uint32_t op = m.op_number(warp);
        if (offset + bytes <= ring_end && (slot >= s.slots || !op || (op <= m.takes_staged.size() && m.takes_staged[op - 1]))) return;
        if (!op || op > m.takes_staged.size() || !m.takes_staged[op - 1]) {
            m.fail(warp, std::string(doing) + " byte " + std::to_string(offset) + " of shared memory, in the ring of staged weights");
        }
    }
    if (offset >= first && offset + bytes <= first + s.slot_bytes) return;
    m.fail(warp, std::string(doing) + " byte " + std::to_string(offset) + " of shared memory, which belongs to slot " +
                     std::to_string((offset - s.slot_areas) / s.slot_bytes) + ": its slot has bytes " + std::to_string(first) +
                     " to " + std::to_string(first + s.slot_bytes - 1));
}

// What blocks may do in each other's shared memory: raise words of the task loop, between two barriers of the cluster.
void check_reach(Warp& warp, Block& block, uint64_t offset) {
    Machine& m = *warp.machine;
    const Settings& s = m.settings;
    Cluster& cluster = *warp.block->cluster;
    std::string where = "reaches byte " + std::to_string(offset) + " of shared memory of block " + std::to_string(block.index);
    if (!cluster.phase || (warp.at_cluster_barrier && !warp.cluster_phase)) {
        m.fail(warp, where + ", and no barrier.cluster lies before: that block may not have begun");
    }
    if (!block.running) m.fail(warp, where + ", which has ended");
    if (s.slot_bytes && offset < s.slot_areas + uint64_t(s.slots) * s.slot_bytes) m.fail(warp, where + ", which belongs to a slot there");
    (warp.at_cluster_barrier ? cluster.reached_late : cluster.reached) = true;
}

}  // namespace

Block& block_of_cluster(Warp& warp, uint32_t rank) {
    Machine& m = *warp.machine;
    uint32_t size = std::max(1u, m.settings.cluster);
    if (rank >= size) m.fail(warp, "block " + std::to_string(rank) + " of a cluster of " + std::to_string(size));
    return *m.blocks[warp.block->index / size * size + rank];
}

void check_bank(Warp& warp, uint64_t offset, uint32_t bytes, uint64_t size, const char* what, const char* doing) {
    if (offset + bytes <= size && offset + bytes >= offset) return;
    warp.machine->fail(warp, std::string(doing) + " " + bytes_text(bytes) + " at byte " + std::to_string(offset) + " of " + what +
                                 ", which has " + std::to_string(size) + " bytes");
}

Range* Machine::range_of(uint64_t address, uint32_t bytes, uint32_t& hint) {
    if (hint < ranges.size()) {
        Range* range = ranges[hint].get();
        if (address >= range->begin && address + bytes <= range->end) return range;
    }
    auto after = std::upper_bound(ranges.begin(), ranges.end(), address, [](uint64_t a, const auto& r) { return a < r->begin; });
    if (after == ranges.begin()) return nullptr;
    Range* range = std::prev(after)->get();
    if (address + bytes > range->end) return nullptr;
    hint = uint32_t(std::prev(after) - ranges.begin());
    return range;
}

uint8_t* Machine::global_at(Warp& warp, const Instruction& instruction, uint64_t address, uint32_t bytes, bool write, Range*& range) {
    range = range_of(address, bytes, instruction.hint);
    const char* doing = write ? "writes " : "reads ";
    if (!range) fail(warp, doing + bytes_text(bytes) + " at " + hex(address) + ", outside every buffer: " + place(warp, address));
    if (write ? !range->writable : !range->readable) {
        fail(warp, std::string(doing) + place(warp, address) + ", which " + (write ? "no op declares to write" : "it declares only to write"));
    }
    if (range->late && !warp.waited) {
        fail(warp, doing + place(warp, address) + " before its wait (griddepcontrol.wait): early_start does not name that parameter");
    }
    if (range->part) {
        uint64_t first = warp.block->linear * range->part, offset = address - range->begin;
        if (offset < first || offset + bytes > first + range->part) {
            fail(warp, doing + place(warp, address) + ": @block promises that block " + std::to_string(warp.block->linear) +
                           " touches only bytes " + std::to_string(first) + " to " + std::to_string(first + range->part - 1));
        }
    }
    return range->host + (address - range->begin);
}

// Where an address of one lane leads to. Fails with what is wrong about it.
Place locate(Warp& warp, const Instruction& i, Space space, uint64_t address, uint32_t bytes, int lane, bool write, uint32_t alignment) {
    Machine& m = *warp.machine;
    const char* doing = write ? "writes" : "reads";
    if (space == Space::generic) {
        uint64_t window = address / kWindow;
        space = window >= 1 && window <= 5 ? Space(window) : Space::global;
        if (space != Space::global) address -= window * kWindow;
    }
    if (address % alignment) {
        m.fail(warp, std::string(doing) + " " + bytes_text(bytes) + " at " + hex(address) + ", which is not a multiple of " + std::to_string(alignment));
    }
    Place place;
    place.space = space;
    switch (space) {
        case Space::global:
            place.host = m.global_at(warp, i, address, bytes, write, place.range);
            place.offset = address - place.range->begin;
            place.address = address;
            place.key = place.range->shared ? address : address | uint64_t(m.device) << 56;
            if (place.range->tracked && m.settings.races) place.shadow = place.range->shadow.get();
            return place;
        case Space::shared:
            check_bank(warp, address, bytes, warp.block->shared.size(), "shared memory", doing);
            check_slot(warp, address, bytes, doing);
            place.host = warp.block->shared.data() + address;
            place.offset = address;
            place.address = kSharedWindow + address;
            place.key = kSharedWindow + (warp.block->place << 32) + address;
            if (m.settings.races) place.shadow = &warp.block->shadow;
            return place;
        case Space::cluster: {
            if (!(address & kMapped)) return locate(warp, i, Space::shared, address, bytes, lane, write, alignment);
            Block& block = block_of_cluster(warp, uint32_t(address) >> kRankShift & 0x7F);
            address &= kMappedOffset;
            check_bank(warp, address, bytes, block.shared.size(), "shared memory of a block of the cluster", doing);
            if (&block != warp.block) check_reach(warp, block, address);
            place.space = Space::shared;
            place.host = block.shared.data() + address;
            place.offset = address;
            place.address = kSharedWindow + (uint64_t(block.index + 1) << 32) + address;
            place.key = kSharedWindow + (block.place << 32) + address;
            if (m.settings.races) place.shadow = &block.shadow;
            return place;
        }
        case Space::local:
            check_bank(warp, address, bytes, m.settings.local_bytes, "local memory", doing);
            place.host = warp.local.data() + uint64_t(lane) * m.settings.local_bytes + address;
            return place;
        case Space::constant:
            check_bank(warp, address, bytes, m.constant_bank.size(), "constant memory", doing);
            if (write) m.fail(warp, "writes constant memory");
            place.host = m.constant_bank.data() + address;
            return place;
        default:
            check_bank(warp, address, bytes, m.params.size(), "the parameters", doing);
            if (write) m.fail(warp, "writes a parameter");
            place.host = m.params.data() + address;
            return place;
    }
}

// Neighbouring lanes usually touch neighbouring bytes: they are recorded together.
AccessRun::AccessRun(Warp& warp, bool write, uint32_t strong, bool atomic) : warp_(warp), write_(write), strong_(strong), atomic_(atomic) {}

void AccessRun::add(const Place& place, uint32_t bytes, bool silent) {
    if (place.shadow != shadow_ || place.offset != end_ || silent != silent_) {
        if (place.shadow == shadow_ && place.offset >= begin_ && place.offset + bytes <= end_ && silent >= silent_) return;
        flush();
        shadow_ = place.shadow, begin_ = place.offset, address_ = place.address, silent_ = silent;
    }
    end_ = place.offset + bytes;
}

void AccessRun::flush() {
    if (shadow_) warp_.machine->saw(warp_, *shadow_, begin_, end_ - begin_, address_, {write_, silent_, atomic_, strong_});
    shadow_ = nullptr;
    begin_ = end_ = 0;
}

void polled(Warp& warp, uint64_t address, uint64_t value) {
    Machine& m = *warp.machine;
    warp.polls = warp.poll_progress == m.shared->progress ? warp.polls + 1 : 1;
    warp.poll_progress = m.shared->progress;
    warp.polled = address, warp.poll_value = value, warp.poll_host = nullptr;
    if (warp.polls > 1) warp.yields = true;
}

}  // namespace ptx
