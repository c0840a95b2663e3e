// memory.cpp: loads, stores, atomic operations and asynchronous copies, with bounds checked and accesses recorded.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "memory_place.h"
#include "numbers.h"

namespace ptx {

namespace {

std::string hex(uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "0x%" PRIx64, value);
    return text;
}

std::string bytes_text(uint32_t bytes) { return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes"); }

uint64_t address_of(Warp& warp, const Instruction& i, const Detail& detail, uint32_t operand, int lane) {
    uint64_t base = detail.wide_address ? warp.lanes<uint64_t>(operand)[lane] : warp.lanes<uint32_t>(operand)[lane];
    uint64_t address = base + i.immediate;
    return detail.wide_address ? address : uint32_t(address);
}

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

Block& block_of_cluster(Warp& warp, uint32_t rank) {
    Machine& m = *warp.machine;
    uint32_t size = std::max(1u, m.settings.cluster);
    if (rank >= size) m.fail(warp, "block " + std::to_string(rank) + " of a cluster of " + std::to_string(size));
    return *m.blocks[warp.block->index / size * size + rank];
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

void check_bank(Warp& warp, uint64_t offset, uint32_t bytes, uint64_t size, const char* what, const char* doing) {
    if (offset + bytes <= size && offset + bytes >= offset) return;
    warp.machine->fail(warp, std::string(doing) + " " + bytes_text(bytes) + " at byte " + std::to_string(offset) + " of " + what +
                                 ", which has " + std::to_string(size) + " bytes");
}

}  // namespace

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

namespace {

uint32_t strength(const Detail& detail) {
    return detail.semantics == Semantics::weak ? 0 : 1 + uint32_t(detail.scope);
}

void check_coherent(Warp& warp, const Place& place, uint32_t bytes) {
    if (!place.shadow || place.space != Space::global) return;
    const Shadow& shadow = *place.shadow;
    if (shadow.cells.empty()) return;
    uint64_t last = std::min<uint64_t>((place.offset + bytes - 1) / shadow.granule, shadow.cells.size() - 1);
    for (uint64_t cell = place.offset / shadow.granule; cell <= last; ++cell) {
        const Access& write = shadow.cells[cell].write;
        if (!write.at) continue;
        warp.machine->fail(warp, "reads " + warp.machine->place(warp, place.address) + " without coherence (ld.global.nc), which " +
                                     warp.machine->op(write.op) + " wrote in this launch (line " +
                                     std::to_string(warp.machine->program[write.instruction].line) + ")");
    }
}

void load(Warp& warp, const Instruction& i, uint32_t mask) {
    Detail detail(i.detail);
    Machine& m = *warp.machine;
    uint32_t vector = detail.vector, size = detail.size, bytes = size * vector;
    uint32_t address_operand = i.operands[vector];
    AccessRun run(warp, false, strength(detail), false);
    bool strong = detail.semantics != Semantics::weak;
    uint64_t last_value = 0, last_address = 0;
    const uint8_t* last_host = nullptr;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        uint64_t address = address_of(warp, i, detail, address_operand, lane);
        Place place = locate(warp, i, detail.space, address, bytes, lane, false, bytes);
        if (detail.non_coherent) check_coherent(warp, place, bytes);
        run.add(place, bytes);
        for (uint32_t k = 0; k < vector; ++k) {
            const uint8_t* from = place.host + size * k;
            uint32_t to = i.operands[k];
            uint64_t value = 0;
            std::memcpy(&value, from, size);
            if (detail.sign) value = size == 1 ? uint64_t(int64_t(int8_t(value))) : size == 2 ? uint64_t(int64_t(int16_t(value))) : value;
            last_value = value, last_address = place.address, last_host = from;
            if (to == kNone) continue;
            if (size == 8) warp.lanes<uint64_t>(to)[lane] = value;
            else warp.lanes<uint32_t>(to)[lane] = uint32_t(value);
        }
        if (strong && place.key) m.acquired(warp, place.key, detail.semantics, detail.scope);
    }
    run.flush();
    if (strong && last_address) {
        polled(warp, last_address, last_value);
        warp.poll_host = last_host, warp.poll_bytes = size;
    }
}

void store(Warp& warp, const Instruction& i, uint32_t mask) {
    Detail detail(i.detail);
    Machine& m = *warp.machine;
    uint32_t vector = detail.vector, size = detail.size, bytes = size * vector;
    uint32_t address_operand = i.operands[vector];
    AccessRun run(warp, true, strength(detail), false);
    bool strong = detail.semantics != Semantics::weak;
    bool changed = false;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        uint64_t address = address_of(warp, i, detail, address_operand, lane);
        Place place = locate(warp, i, detail.space, address, bytes, lane, true, bytes);
        bool silent = true;  // several warps may store the same value, as Triton's do
        for (uint32_t k = 0; k < vector; ++k) {
            uint64_t value = size == 8 ? warp.lanes<uint64_t>(i.operands[k])[lane] : warp.lanes<uint32_t>(i.operands[k])[lane];
            silent = silent && !std::memcmp(place.host + size * k, &value, size);
            std::memcpy(place.host + size * k, &value, size);
        }
        run.add(place, bytes, silent);
        changed |= !silent;
        if (strong) run.flush();  // the store is part of what is published
        if (strong && place.key) m.released(warp, place.key, detail.semantics, detail.scope, false);
        if (m.settings.progress && place.space == Space::global) m.note_progress_word(warp, place.address, bytes);
    }
    run.flush();
    if (changed) ++m.shared->progress;  // a warp that waits for long says so again and again
}

enum AtomicType : uint32_t { kU32, kS32, kU64, kS64, kF32, kF64, kF16, kF16x2, kBf16, kBf16x2, kB16 };
enum AtomicOperation : uint32_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompare, kIncrement, kDecrement };

template <class T>
uint64_t integer_result(uint32_t operation, uint64_t old, uint64_t b, uint64_t c) {
    T x = T(old), y = T(b), z = T(c);
    switch (operation) {
        case kAdd: return uint64_t(std::make_unsigned_t<T>(x) + std::make_unsigned_t<T>(y));
        case kMin: return uint64_t(x < y ? x : y);
        case kMax: return uint64_t(x < y ? y : x);
        case kAnd: return uint64_t(x & y);
        case kOr: return uint64_t(x | y);
        case kXor: return uint64_t(x ^ y);
        case kExchange: return uint64_t(y);
        case kCompare: return uint64_t(x == y ? z : x);
        case kIncrement: return uint64_t(x >= y ? T(0) : T(x + 1));
        default: return uint64_t(x == 0 || x > y ? y : T(x - 1));
    }
}

template <class T> uint16_t half_result(uint32_t operation, uint64_t old, uint64_t b) {
    float x = to_float(T{uint16_t(old)}), y = to_float(T{uint16_t(b)});
    if (operation == kAdd) return from_double<T>(fused_odd(x, 1.0, y)).bits;
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) ? uint16_t(b) : uint16_t(old);
    return (operation == kMin ? y < x : x < y) ? uint16_t(b) : uint16_t(old);
}

uint64_t atomic_result(uint32_t operation, uint32_t type, uint64_t old, uint64_t b, uint64_t c) {
    switch (type) {
        case kU32: return integer_result<uint32_t>(operation, old, b, c);
        case kS32: return uint32_t(integer_result<int32_t>(operation, old, b, c));
        case kU64: return integer_result<uint64_t>(operation, old, b, c);
        case kS64: return integer_result<int64_t>(operation, old, b, c);
        case kB16: return integer_result<uint16_t>(operation, old & 0xFFFF, b & 0xFFFF, c & 0xFFFF);
        case kF32: {
            float x = bits_as<float>(uint32_t(old)), y = bits_as<float>(uint32_t(b));
            return bits_as<uint32_t>(operation == kAdd ? x + y : operation == kMin ? std::fmin(x, y) : std::fmax(x, y));
        }
        case kF64: return bits_as<uint64_t>(bits_as<double>(old) + bits_as<double>(b));
        case kF16: return half_result<Half>(operation, old, b);
        case kBf16: return half_result<Bfloat>(operation, old, b);
        case kF16x2: return half_result<Half>(operation, old, b) | uint32_t(half_result<Half>(operation, old >> 16, b >> 16)) << 16;
        default: return half_result<Bfloat>(operation, old, b) | uint32_t(half_result<Bfloat>(operation, old >> 16, b >> 16)) << 16;
    }
}

void atomic(Warp& warp, const Instruction& i, uint32_t mask) {
    Detail detail(i.detail);
    Machine& m = *warp.machine;
    uint32_t size = detail.size;
    AccessRun run(warp, true, strength(detail), true);
    bool changed = false;
    uint64_t seen = 0, last_address = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        auto operand = [&](uint32_t offset) -> uint64_t {
            if (offset == kNone) return 0;
            return size == 8 ? warp.lanes<uint64_t>(offset)[lane] : warp.lanes<uint32_t>(offset)[lane];
        };
        Place place = locate(warp, i, detail.space, address_of(warp, i, detail, i.operands[1], lane), size, lane, true, size);
        run.add(place, size);
        uint64_t old = 0;
        std::memcpy(&old, place.host, size);
        uint64_t result = atomic_result(detail.operation, detail.type, old, operand(i.operands[2]), operand(i.operands[3]));
        if (size < 8) result &= (uint64_t(1) << 8 * size) - 1;
        std::memcpy(place.host, &result, size);
        changed |= result != old;
        seen = old, last_address = place.address;
        if (place.key) {
            m.acquired(warp, place.key, detail.semantics, detail.scope);
            m.released(warp, place.key, detail.semantics, detail.scope, true);
        }
        if (i.operands[0] != kNone) {
            if (size == 8) warp.lanes<uint64_t>(i.operands[0])[lane] = old;
            else warp.lanes<uint32_t>(i.operands[0])[lane] = uint32_t(old);
        }
    }
    run.flush();
    if (changed) ++m.shared->progress;
    else polled(warp, last_address, seen);
}

void map_address(Warp& warp, const Instruction& i, uint32_t mask) {
    auto *d = warp.lanes<uint32_t>(i.operands[0]), *a = warp.lanes<uint32_t>(i.operands[1]), *rank = warp.lanes<uint32_t>(i.operands[2]);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        check_bank(warp, a[lane], 1, warp.block->shared.size(), "shared memory", "maps");
        block_of_cluster(warp, rank[lane]);
        d[lane] = kMapped | rank[lane] << kRankShift | a[lane];
    }
}

void fence(Warp& warp, const Instruction& i, uint32_t) { warp.machine->fence(warp, Scope(i.detail)); }
void fence_proxy(Warp& warp, const Instruction&, uint32_t) { warp.machine->fence_proxy(warp); }

void land(Warp& warp, size_t index, bool record) {
    Machine& m = *warp.machine;
    Copy copy = warp.copies[index];
    const Instruction& i = m.program[copy.instruction];
    uint8_t bytes[16] = {};
    if (copy.filled) {
        Place from = locate(warp, i, Space::global, copy.from, copy.filled, int(copy.lane), false, copy.bytes);
        std::memcpy(bytes, from.host, copy.filled);
        if (record && from.shadow) m.saw(warp, *from.shadow, from.offset, copy.filled, from.address, {});
    }
    Place to = locate(warp, i, Space::shared, copy.to, copy.bytes, int(copy.lane), true, copy.bytes);
    std::memcpy(to.host, bytes, copy.bytes);
    if (record && to.shadow) m.saw(warp, *to.shadow, to.offset, copy.bytes, to.address, {true, false, false, 0});
}

void copy_async(Warp& warp, const Instruction& i, uint32_t mask) {
    Machine& m = *warp.machine;
    ++m.shared->progress;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        Copy copy;
        copy.to = warp.lanes<uint32_t>(i.operands[0])[lane];
        copy.from = warp.lanes<uint64_t>(i.operands[1])[lane];
        copy.bytes = i.detail;
        copy.filled = i.operands[2] == kNone ? copy.bytes : std::min(copy.bytes, warp.lanes<uint32_t>(i.operands[2])[lane]);
        if (i.operands[3] != kNone && warp.predicate(i.operands[3]) >> lane & 1) copy.filled = 0;
        copy.instruction = warp.at;
        copy.lane = uint32_t(lane);
        copy.group = kOpenGroup;
        warp.copies.push_back(copy);
        if (!m.random.chance(m.settings.late_copies)) land(warp, warp.copies.size() - 1, false);
    }
}

void commit(Warp& warp, const Instruction&, uint32_t) {
    for (Copy& copy : warp.copies) {
        if (copy.group == kOpenGroup) copy.group = warp.group;
    }
    ++warp.group;
}

void complete(Warp& warp, int below) {
    uint32_t at = warp.at;
    for (size_t k = 0; k < warp.copies.size(); ++k) {
        if (warp.copies[k].group >= below) continue;
        warp.at = warp.copies[k].instruction;
        land(warp, k, true);
    }
    warp.at = at;
    auto done = [=](const Copy& copy) { return copy.group < below; };
    warp.copies.erase(std::remove_if(warp.copies.begin(), warp.copies.end(), done), warp.copies.end());
}

void wait_group(Warp& warp, const Instruction& i, uint32_t) { complete(warp, warp.group - int(i.immediate)); }
void wait_all(Warp& warp, const Instruction&, uint32_t) {
    complete(warp, INT32_MAX);
    land_copies_of(warp);
}

}  // namespace

void complete_copies(Warp& warp) { complete(warp, INT32_MAX); }

void Machine::note_progress_word(Warp&, uint64_t address, uint64_t) {
    if (address < settings.progress || address >= settings.progress + 4 * uint64_t(settings.cores)) return;
    uint32_t hint = 0, value;
    Range* range = range_of(address, 4, hint);
    std::memcpy(&value, range->host + (address - range->begin), 4);
    value &= 0x7FFFFFFF;  // bit 31: it has waited for long
    records.push_back({steps, uint32_t(address - settings.progress) / 4, value});
}

void add_memory(std::vector<HandlerEntry>& table) {
    table.insert(table.end(), {
        {"ld", &load}, {"st", &store}, {"atom", &atomic}, {"mapa", &map_address}, {"fence", &fence}, {"fence.proxy.async", &fence_proxy}, {"cp.async", &copy_async},
        {"cp.async.commit_group", &commit}, {"cp.async.wait_group", &wait_group}, {"cp.async.wait_all", &wait_all},
    });
}

}  // namespace ptx
