// memory.cpp: loads, stores, atomic operations and asynchronous copies of the lanes of a warp.
#include <algorithm>

#include "memory_place.h"
#include "numbers.h"

namespace ptx {

namespace {

uint64_t address_of(Warp& warp, const Instruction& i, const Detail& detail, uint32_t operand, int lane) {
    uint64_t base = detail.wide_address ? warp.lanes<uint64_t>(operand)[lane] : warp.lanes<uint32_t>(operand)[lane];
    uint64_t address = base + i.immediate;
    return detail.wide_address ? address : uint32_t(address);
}

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
