// scheduler.cpp: which warp goes on, and for how long: the seed decides. Blocks take the places that others leave.
#include <algorithm>

#include "machine.h"
#include "memory_place.h"

namespace ptx {

namespace {

constexpr uint64_t kPatience = 96;  // polls without any progress anywhere before a warp counts as stuck

enum Register : uint32_t {  // as SPECIALS in registers.py
    kTid, kNtid, kCtaid, kNctaid, kLaneid, kWarpid, kNwarpid, kSmid, kNsmid,
    kMaskEq, kMaskLt, kMaskLe, kMaskGt, kMaskGe, kDynamicShared, kTotalShared, kGridid
};

uint32_t special_value(const Machine& m, const Warp& warp, const Special& special, uint32_t lane) {
    const Settings& s = m.settings;
    uint32_t thread = warp.number * kLanes + lane;
    const uint32_t tid[3] = {thread % s.threads[0], thread / s.threads[0] % s.threads[1], thread / s.threads[0] / s.threads[1]};
    switch (special.what) {
        case kTid: return tid[special.axis];
        case kNtid: return s.threads[special.axis];
        case kCtaid: return warp.block->id[special.axis];
        case kNctaid: return s.grid[special.axis];
        case kLaneid: return lane;
        case kWarpid: return warp.number;
        case kNwarpid: return uint32_t(warp.block->warps.size());
        case kSmid: return warp.block->index;
        case kNsmid: return s.resident;
        case kMaskEq: return 1u << lane;
        case kMaskLt: return (1u << lane) - 1;
        case kMaskLe: return (2u << lane) - 1;
        case kMaskGt: return ~((2u << lane) - 1);
        case kMaskGe: return ~((1u << lane) - 1);
        case kDynamicShared: return s.dynamic_shared;
        case kTotalShared: return s.shared_bytes;
        default: return 0;
    }
}

}  // namespace

uint64_t Machine::places() const {
    return std::min<uint64_t>(settings.resident, uint64_t(settings.grid[0]) * settings.grid[1] * settings.grid[2]);
}

uint32_t Machine::warps_of_block() const {
    return (settings.threads[0] * settings.threads[1] * settings.threads[2] + kLanes - 1) / kLanes;
}

void Machine::begin() {
    random.seed(settings.seed);
    block_count = uint64_t(settings.grid[0]) * settings.grid[1] * settings.grid[2];
    uint32_t per_block = warps_of_block(), size = std::max(1u, settings.cluster);
    if (size > 1 && (places() < block_count || block_count % size || settings.grid[0] % size)) {
        throw Failure("clusters of " + std::to_string(size) + " blocks: all blocks must be resident, in whole clusters");
    }
    for (uint64_t place = 0; place < places(); ++place) {
        blocks.push_back(std::make_unique<Block>());
        Block& block = *blocks.back();
        block.index = uint32_t(place);
        block.place = uint64_t(device) << 16 | place;
        if (place % size == 0) clusters.push_back(std::make_unique<Cluster>());
        block.cluster = clusters.back().get();
        block.cluster->place = uint64_t(device) << 16 | place / size;
        for (uint32_t number = 0; number < per_block; ++number) {
            block.warps.push_back(std::make_unique<Warp>());
            Warp& warp = *block.warps.back();
            warp.machine = this, warp.block = &block, warp.number = number, warp.index = uint32_t(warps.size());
            warp.actor = first_actor + warp.index;
            warp.priority = random.next();
            warps.push_back(&warp);
        }
    }
    for (Warp* warp : warps) {
        warp->clock = known;
        warp->clock.resize(2 * shared->warps);
        warp->clock.advance(warp->actor);
    }
    held.assign(warps.size(), false);
    ready_changed = true;
    for (auto& block : blocks) start_block(*block);
    begun = true;
}

void Machine::start_block(Block& block) {
    const Settings& s = settings;
    block.linear = next_block++;
    block.id[0] = uint32_t(block.linear % s.grid[0]);
    block.id[1] = uint32_t(block.linear / s.grid[0] % s.grid[1]);
    block.id[2] = uint32_t(block.linear / s.grid[0] / s.grid[1]);
    block.shared.resize(s.shared_bytes);
    for (size_t k = 0; k < block.shared.size(); k += 8) {  // what a kernel before left there
        uint64_t garbage = random.next();
        std::memcpy(block.shared.data() + k, &garbage, std::min<size_t>(8, block.shared.size() - k));
    }
    block.shadow = Shadow();
    for (Barrier& barrier : block.barriers) barrier = Barrier();
    block.running = uint32_t(block.warps.size());
    block.cluster->live += block.running;
    ready_changed = true;
    uint32_t threads = s.threads[0] * s.threads[1] * s.threads[2];
    for (auto& owned : block.warps) {
        Warp& warp = *owned;
        warp.file = image;
        warp.local.assign(size_t(s.local_bytes) * kLanes, 0xA5);
        uint32_t first = warp.number * kLanes, lanes = std::min<uint32_t>(kLanes, threads - first);
        warp.lanes_begun = warp.live = warp.mask = lanes == kLanes ? kAllLanes : (1u << lanes) - 1;
        warp.pc = 0;
        warp.state = State::ready;
        warp.waited = warp.at_cluster_barrier = false;
        warp.others.clear();
        warp.group = 0;
        warp.polls = 0;
        for (const Special& special : specials) {
            if (special.what == kGridid) continue;
            auto* lanes_of = warp.lanes<uint32_t>(special.offset);
            for (uint32_t lane = 0; lane < kLanes; ++lane) lanes_of[lane] = special_value(*this, warp, special, lane);
        }
    }
}

void Machine::end_warp(Warp& warp) {
    complete_copies(warp);
    warp.state = State::done;
    ready_changed = true;
    ++shared->progress;
    Cluster& cluster = *warp.block->cluster;
    if (warp.at_cluster_barrier && warp.cluster_phase == cluster.phase) --cluster.arrived;
    --cluster.live;
    if (warp.block->running == 1 && (cluster.reached || cluster.reached_late)) {
        fail(warp, "its block ends, and no barrier.cluster lies behind the last access of a block of the cluster to another one's shared memory");
    }
    meet_cluster(cluster);
    if (warp.block->running == 1 && !warp.block->bulk_copies.empty()) {
        fail(warp, "its block ends while copies are on their way to its shared memory");
    }
    if (--warp.block->running == 0 && next_block < block_count) start_block(*warp.block);
}

// Under `held` the seed chooses the warps that wait for long: one warp, all but one, a slot, a block, any.
void Machine::hold_some() {
    size_t count = warps.size();
    const Warp& chosen = *warps[random.below(count)];
    uint64_t way = random.below(6);
    uint32_t per_slot = std::max(1u, settings.slot_threads / kLanes);
    for (size_t k = 0; k < count; ++k) {
        const Warp& warp = *warps[k];
        bool same_block = warp.block == chosen.block;
        held[k] = way <= 1   ? &warp == &chosen
                  : way == 2 ? &warp != &chosen
                  : way == 3 ? same_block && warp.number / per_slot == chosen.number / per_slot
                  : way == 4 ? same_block
                             : random.chance(512);
    }
    held_until = steps + (uint64_t(256) << random.below(10));
}

// Whether a warp polls and nothing has changed. With lanes apart, all of its groups have had many turns by then.
bool Machine::in_vain(const Warp& warp) const {
    uint64_t patience = settings.apart ? kPatience * 8 : kPatience;
    return warp.polls > patience && warp.poll_progress == shared->progress;
}

void Machine::find_ready() {
    ready.clear();
    for (Warp* warp : warps) {
        if (warp->state == State::ready) ready.push_back(warp);
    }
    ready_changed = false;
}

// A warp that is neither held back nor would see again what it saw when it polled last.
bool Machine::eager(const Warp& warp) const {
    bool polls = warp.polls > 1 && (warp.poll_progress == shared->progress ||
                                    (warp.poll_host && !std::memcmp(warp.poll_host, &warp.poll_value, warp.poll_bytes)));
    return warp.state == State::ready && !polls && !(Order(settings.order) == Order::held && held[warp.index]);
}

Warp* Machine::choose() {
    if (ready_changed) find_ready();
    if (ready.empty()) return nullptr;
    Order order = Order(settings.order);
    if (order == Order::clock) return ready[++turn % ready.size()];
    if (order == Order::held && steps >= held_until) hold_some();
    if (order == Order::priority) {
        if (favourite && eager(*favourite) && !random.chance(24)) return favourite;
        if (favourite) favourite->priority = random.next();
        favourite = nullptr;
        for (Warp* warp : ready) {
            if (eager(*warp) && (!favourite || warp->priority > favourite->priority)) favourite = warp;
        }
        return favourite ? favourite : ready[random.below(ready.size())];
    }
    if (order == Order::random && random.chance(64)) return ready[random.below(ready.size())];
    for (int attempt = 0; attempt < 8; ++attempt) {  // most warps are eager, most of the time
        Warp* warp = ready[random.below(ready.size())];
        if (eager(*warp)) return warp;
    }
    chosen_from.clear();
    for (Warp* warp : ready) {
        if (eager(*warp)) chosen_from.push_back(warp);
    }
    const std::vector<Warp*>& from = chosen_from.empty() ? ready : chosen_from;
    return from[random.below(from.size())];
}

// Whether a warp polls a word that the host may set. If it does, all of them may try again.
bool Machine::waits_for_host() {
    bool waits = std::any_of(warps.begin(), warps.end(), [&](Warp* warp) {
        uint32_t hint = 0;
        Range* range = warp->state == State::ready ? range_of(warp->polled, 1, hint) : nullptr;
        return range && range->outside;
    });
    if (waits) ++shared->progress;
    return waits;
}

int Machine::run(uint64_t most_steps) {
    try {
        if (!begun) begin();
        uint64_t until = steps + most_steps;
        while (steps < until) {
            Warp* warp = choose();
            if (!warp) {
                if (std::all_of(warps.begin(), warps.end(), [](Warp* w) { return w->state == State::done; })) return 0;
                deadlock("deadlock: no warp can go on");
            }
            if (in_vain(*warp) && std::all_of(warps.begin(), warps.end(), [&](Warp* w) { return w->state != State::ready || in_vain(*w); })) {
                if (waits_for_host()) return 3;
                if (shared->devices.size() > 1) return 4;
                deadlock("deadlock: no warp can go on");
            }
            uint64_t mean = std::max(1u, settings.quantum);
            execute(*warp, Order(settings.order) == Order::clock ? int64_t(mean) : int64_t(1 + random.below(2 * mean)));
            if (shared->progress != seen_progress) seen_progress = shared->progress, last_progress_step = steps;
            if (steps - last_progress_step > settings.stall_limit) {
                deadlock("no progress in the last " + std::to_string(steps - last_progress_step) + " steps: is this an endless loop?");
            }
        }
        return 1;
    } catch (const Failure& failure) {
        error = failure.what();
        return 2;
    }
}

}  // namespace ptx
