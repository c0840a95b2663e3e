// bulk.cpp: mbarriers in shared memory, and bulk copies to shared memory that complete on them.
#include <algorithm>

#include "memory_place.h"

namespace ptx {

namespace {

constexpr int64_t kMostBytes = (1 << 20) - 1;  // on their way to one mbarrier

struct Mbarrier {  // as it lies in its 8 bytes of shared memory
    uint64_t valid : 1;
    uint64_t phase : 1;
    uint64_t count : 20, missing : 20;  // arrivals of a phase
    int64_t bytes : 22;                 // that copies have not brought yet

    void complete() {
        if (missing || bytes) return;
        phase ^= 1;
        missing = count;
    }
};
static_assert(sizeof(Mbarrier) == 8);

Place mbarrier_at(Warp& warp, const Instruction& i, uint32_t operand, int lane) {
    return locate(warp, i, Space::shared, warp.lanes<uint32_t>(operand)[lane], 8, lane, true, 8);
}

Mbarrier read_mbarrier(Warp& warp, const Place& place, const char* doing) {
    Mbarrier found;
    std::memcpy(&found, place.host, sizeof found);
    if (!found.valid || !found.count) {
        warp.machine->fail(warp, std::string(doing) + " " + warp.machine->place(warp, place.address) + ", where no mbarrier was initialised");
    }
    return found;
}

void write_mbarrier(const Place& place, const Mbarrier& value) { std::memcpy(place.host, &value, sizeof value); }

void saw_atomic(Warp& warp, const Place& place) {
    if (place.shadow) warp.machine->saw(warp, *place.shadow, place.offset, 8, place.address, {true, false, true, 1});
}

void land_bulk(Machine& m, const BulkCopy& copy) {
    if (copy.bytes) std::memcpy(copy.to, copy.from, copy.bytes);
    Mbarrier state;
    std::memcpy(&state, copy.mbarrier, sizeof state);
    if (!copy.asked_by) state.bytes -= copy.bytes;
    if (copy.arrives) --state.missing;
    state.complete();
    std::memcpy(copy.mbarrier, &state, sizeof state);
    ++m.shared->progress;
}

void init_mbarrier(Warp& warp, const Instruction& i, uint32_t mask) {
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        Place place = mbarrier_at(warp, i, i.operands[0], lane);
        uint32_t count = warp.lanes<uint32_t>(i.operands[1])[lane];
        write_mbarrier(place, Mbarrier{1, 0, count, count, 0});
        if (place.shadow) warp.machine->saw(warp, *place.shadow, place.offset, 8, place.address, {true, false, false, 0});
    }
    ++warp.machine->shared->progress;
}

void invalidate_mbarrier(Warp& warp, const Instruction& i, uint32_t mask) {
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        Place place = mbarrier_at(warp, i, i.operands[0], lane);
        Mbarrier state = read_mbarrier(warp, place, "invalidates");
        if (state.bytes) warp.machine->fail(warp, "invalidates " + warp.machine->place(warp, place.address) + " before its copies have arrived");
        write_mbarrier(place, Mbarrier{});
        if (place.shadow) warp.machine->saw(warp, *place.shadow, place.offset, 8, place.address, {true, false, false, 0});
    }
}

// operands: the state that is returned, the mbarrier, bytes to expect
void arrive_at_mbarrier(Warp& warp, const Instruction& i, uint32_t mask) {
    Machine& m = *warp.machine;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        Place place = mbarrier_at(warp, i, i.operands[1], lane);
        Mbarrier state = read_mbarrier(warp, place, "arrives at");
        uint64_t before;
        std::memcpy(&before, place.host, sizeof before);
        if (i.operands[2] != kNone) state.bytes += warp.lanes<uint32_t>(i.operands[2])[lane];
        if (state.bytes > kMostBytes) m.fail(warp, "expects more bytes than an mbarrier can count");
        if (!state.missing) m.fail(warp, "arrives at " + m.place(warp, place.address) + " more often than it was initialised for");
        --state.missing;
        state.complete();
        write_mbarrier(place, state);
        saw_atomic(warp, place);
        m.released(warp, place.key, Semantics::release, Scope::cta, true);
        if (i.operands[0] != kNone) warp.lanes<uint64_t>(i.operands[0])[lane] = before;
    }
    ++m.shared->progress;
}

// cp.async.mbarrier.arrive.noinc: each lane arrives when its copies have; operands: the mbarrier
void arrive_behind_copies(Warp& warp, const Instruction& i, uint32_t mask) {
    Machine& m = *warp.machine;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        Place place = mbarrier_at(warp, i, i.operands[0], lane);
        Mbarrier state = read_mbarrier(warp, place, "arrives at");
        uint64_t on_their_way = 0;
        for (const BulkCopy& copy : warp.block->bulk_copies) on_their_way += copy.arrives && copy.mbarrier == place.host;
        if (state.missing <= on_their_way) m.fail(warp, "arrives at " + m.place(warp, place.address) + " more often than it was initialised for");
        std::vector<BulkCopy> asked;
        uint32_t at = warp.at;
        for (const Copy& copy : warp.copies) {
            if (copy.lane != uint32_t(lane)) continue;
            if (copy.filled != copy.bytes) m.fail(warp, "arrives behind a copy that fills with zeros");
            warp.at = copy.instruction;
            const Instruction& of = m.program[copy.instruction];
            Place from = locate(warp, of, Space::global, copy.from, copy.bytes, lane, false, copy.bytes);
            Place to = locate(warp, of, Space::shared, copy.to, copy.bytes, lane, true, copy.bytes);
            if (from.shadow) m.saw(warp, *from.shadow, from.offset, copy.bytes, from.address, {});
            if (to.shadow) m.saw(warp, *to.shadow, to.offset, copy.bytes, to.address, {true, false, false, 0});
            asked.push_back({from.host, to.host, place.host, copy.bytes, &warp, false});
        }
        warp.at = at;
        auto taken = [=](const Copy& copy) { return copy.lane == uint32_t(lane); };
        warp.copies.erase(std::remove_if(warp.copies.begin(), warp.copies.end(), taken), warp.copies.end());
        asked.push_back({nullptr, nullptr, place.host, 0, &warp, true});
        saw_atomic(warp, place);
        m.released(warp, place.key, Semantics::release, Scope::cta, true);
        if (m.random.chance(m.settings.late_copies)) {
            warp.block->bulk_copies.insert(warp.block->bulk_copies.end(), asked.begin(), asked.end());
        } else {
            for (const BulkCopy& copy : asked) land_bulk(m, copy);
        }
    }
    ++m.shared->progress;
}

// operands: whether the phase of that parity has completed, the mbarrier, the parity
void test_mbarrier(Warp& warp, const Instruction& i, uint32_t mask) {
    Machine& m = *warp.machine;
    uint32_t done = 0;
    uint64_t last_address = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        Place place = mbarrier_at(warp, i, i.operands[1], lane);
        std::vector<BulkCopy>& late = warp.block->bulk_copies;
        auto rest_of = std::stable_partition(late.begin(), late.end(), [&](const BulkCopy& copy) { return copy.mbarrier == place.host; });
        for (auto copy = late.begin(); copy != rest_of; ++copy) land_bulk(m, *copy);
        late.erase(late.begin(), rest_of);
        Mbarrier state = read_mbarrier(warp, place, "waits at");
        saw_atomic(warp, place);
        last_address = place.address;
        if (state.phase == (warp.lanes<uint32_t>(i.operands[2])[lane] & 1)) continue;
        done |= uint32_t(1) << lane;
        m.acquired(warp, place.key, Semantics::acquire, Scope::cta);
    }
    uint32_t& result = warp.predicate(i.operands[0]);
    result = (result & ~mask) | done;
    if (done != mask) polled(warp, last_address, 0);
}

// operands: where to, where from, bytes, the mbarrier
void copy_bulk(Warp& warp, const Instruction& i, uint32_t mask) {
    Machine& m = *warp.machine;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        uint32_t bytes = warp.lanes<uint32_t>(i.operands[2])[lane];
        if (!bytes || bytes % 16) m.fail(warp, "copies " + std::to_string(bytes) + " bytes in bulk; they must be a multiple of 16");
        Place from = locate(warp, i, Space::global, warp.lanes<uint64_t>(i.operands[1])[lane], bytes, lane, false, 16);
        Place to = locate(warp, i, Space::shared, warp.lanes<uint32_t>(i.operands[0])[lane], bytes, lane, true, 16);
        Place place = mbarrier_at(warp, i, i.operands[3], lane);
        read_mbarrier(warp, place, "completes on");
        if (from.shadow) m.saw(warp, *from.shadow, from.offset, bytes, from.address, {false, false, false, 0, true});
        if (to.shadow) m.saw(warp, *to.shadow, to.offset, bytes, to.address, {true, false, false, 0, true});
        m.released(warp, place.key, Semantics::release, Scope::cta, true);
        BulkCopy copy{from.host, to.host, place.host, bytes};
        if (m.random.chance(m.settings.late_copies)) warp.block->bulk_copies.push_back(copy);
        else land_bulk(m, copy);
    }
    ++m.shared->progress;
}

}  // namespace

void land_copies_of(Warp& warp) {
    std::vector<BulkCopy>& late = warp.block->bulk_copies;
    auto rest_of = std::stable_partition(late.begin(), late.end(), [&](const BulkCopy& copy) { return copy.asked_by == &warp; });
    for (auto copy = late.begin(); copy != rest_of; ++copy) land_bulk(*warp.machine, *copy);
    late.erase(late.begin(), rest_of);
}

void add_bulk(std::vector<HandlerEntry>& table) {
    table.insert(table.end(), {
        {"mbarrier.init", &init_mbarrier}, {"mbarrier.inval", &invalidate_mbarrier}, {"mbarrier.arrive", &arrive_at_mbarrier}, {"mbarrier.test", &test_mbarrier},
        {"cp.async.bulk", &copy_bulk}, {"cp.async.mbarrier.arrive", &arrive_behind_copies},
    });
}

}  // namespace ptx
