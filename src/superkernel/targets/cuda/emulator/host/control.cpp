// control.cpp: the instructions of one warp, one after the other: branches, lanes that part and meet, barriers, ends.
//
// Lanes at the same instruction run together. Of several groups of lanes the one with the lowest pc runs, so that
// lanes that parted meet where the program joins again. Under some seeds they meet only where an instruction needs all of
// them (barriers, shfl.sync, mma): what a program may not rely on, it does not get.
#include <algorithm>

#include "machine.h"
#include "memory_place.h"

namespace ptx {

std::string lanes_text(uint32_t mask) {
    std::string text;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!(mask >> lane & 1)) continue;
        int last = lane;
        while (last + 1 < kLanes && mask >> (last + 1) & 1) ++last;
        text += (text.empty() ? "" : ",") + std::to_string(lane) + (last > lane ? "-" + std::to_string(last) : "");
        lane = last;
    }
    return text;
}

namespace {

// The lanes of other groups at the same instruction join the group that runs.
void absorb(Warp& warp) {
    auto joins = [&](const Group& group) {
        if (group.pc != warp.pc) return false;
        warp.mask |= group.mask;
        return true;
    };
    warp.others.erase(std::remove_if(warp.others.begin(), warp.others.end(), joins), warp.others.end());
}

}  // namespace

void Machine::choose_group(Warp& warp) {
    if (warp.mask) warp.others.push_back({warp.pc, warp.mask, false});
    uint32_t lowest = UINT32_MAX;
    for (const Group& group : warp.others) {
        if (!group.parked) lowest = std::min(lowest, group.pc);
    }
    if (lowest == UINT32_MAX) {
        const Group first = warp.others.front();
        warp.at = first.pc;
        std::string missing;
        for (size_t k = 1; k < warp.others.size(); ++k) {
            const Group& other = warp.others[k];
            missing += "; lanes " + lanes_text(other.mask) + " wait at line " + std::to_string(program[other.pc].line);
        }
        if (uint32_t ended = warp.lanes_begun & ~warp.live) missing += "; lanes " + lanes_text(ended) + " have ended";
        fail(warp, "diverged: only lanes " + lanes_text(first.mask) + " of the warp are here, and the instruction needs all" + missing);
    }
    if (settings.apart) {  // any group that can go on
        std::vector<size_t> free;
        for (size_t k = 0; k < warp.others.size(); ++k) {
            if (!warp.others[k].parked) free.push_back(k);
        }
        size_t taken = free[random.below(free.size())];
        warp.pc = warp.others[taken].pc, warp.mask = warp.others[taken].mask;
        warp.others.erase(warp.others.begin() + long(taken));
        return;
    }
    warp.pc = lowest, warp.mask = 0;
    absorb(warp);
}

void Machine::gather_lanes(Warp& warp) {
    if (!settings.apart) return choose_group(warp);
    if (program[warp.pc].flags & kMeets) absorb(warp);
    if (!warp.others.empty() && random.chance(128)) {
        bool free = std::any_of(warp.others.begin(), warp.others.end(), [](const Group& group) { return !group.parked; });
        if (free) choose_group(warp);
    }
    if (program[warp.pc].flags & kMeets) absorb(warp);
}

void Machine::park(Warp& warp, uint32_t lanes) {
    warp.others.push_back({warp.at, lanes, true});
    warp.mask &= ~lanes;
    choose_group(warp);
}

// Whether all members are at this instruction. If not, the lanes that are wait for the rest.
bool Machine::together(Warp& warp, uint32_t lanes, uint32_t members) {
    members &= warp.lanes_begun;
    if (lanes & ~members) fail(warp, "lanes " + lanes_text(lanes & ~members) + " execute it and are not in its member mask");
    if (uint32_t ended = members & ~warp.live) {
        fail(warp, "diverged: lanes " + lanes_text(ended) + " have ended, and the instruction needs them");
    }
    if (lanes == members) return true;
    park(warp, lanes);
    return false;
}

void Machine::execute(Warp& warp, int64_t budget) {
    warp.yields = false;
    while (budget-- > 0 && warp.state == State::ready && !warp.yields) {
        if (!warp.others.empty() && program[warp.pc].flags & kLeader) gather_lanes(warp);
        const Instruction& i = program[warp.pc];
        warp.at = warp.pc++;
        ++steps;
        uint32_t mask = warp.mask;
        if (i.guard != kNone) {
            uint32_t p = warp.predicate(i.guard);
            mask &= i.flags & kGuardNegated ? ~p : p;
            if (!mask) continue;
        }
        i.function(warp, i, mask);
    }
}

namespace {

void take(Warp& warp, uint32_t lanes, uint32_t target) {
    if (lanes == warp.mask) {
        warp.pc = target;
        return;
    }
    warp.others.push_back({warp.pc, warp.mask & ~lanes, false});
    warp.mask = lanes, warp.pc = target;
    warp.machine->choose_group(warp);
}

void branch(Warp& warp, const Instruction& i, uint32_t mask) {
    take(warp, mask, uint32_t(i.immediate));
}

void branch_indexed(Warp& warp, const Instruction& i, uint32_t mask) {
    Machine& m = *warp.machine;
    auto* index = warp.lanes<uint32_t>(i.operands[0]);
    uint32_t first = index[__builtin_ctz(mask)], same = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        if (index[lane] >= i.detail) m.fail(warp, "branches by index " + std::to_string(index[lane]) + " of a table of " + std::to_string(i.detail));
        same |= uint32_t(index[lane] == first) << lane;
    }
    uint32_t others = warp.mask & ~same;
    uint32_t left = mask & ~same;
    if (left) {  // these take the branch later, the rest of the warp goes on
        warp.others.push_back({warp.at, left, false});
        others &= ~left;
    }
    if (others) warp.others.push_back({warp.pc, others, false});
    warp.mask = same, warp.pc = m.targets[i.immediate + first];
    if (!warp.others.empty()) m.choose_group(warp);
}

void end_lanes(Warp& warp, const Instruction&, uint32_t mask) {
    Machine& m = *warp.machine;
    warp.live &= ~mask;
    warp.mask &= ~mask;
    if (warp.mask) return;
    if (!warp.others.empty()) m.choose_group(warp);
    else m.end_warp(warp);
}

void trap(Warp& warp, const Instruction&, uint32_t) { warp.machine->fail(warp, "trap"); }

uint32_t uniform(Warp& warp, uint32_t operand, uint32_t mask, const char* what) {
    auto* values = warp.lanes<uint32_t>(operand);
    uint32_t first = values[__builtin_ctz(mask)];
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        if (values[__builtin_ctz(rest)] != first) warp.machine->fail(warp, std::string("diverged: its lanes give different ") + what);
    }
    return first;
}

enum BarrierKind : uint32_t { kSync, kArrive, kPopulation, kAll, kAny };

void release(Machine& m, Barrier& barrier) {
    for (Warp* waiting : barrier.waiting) {
        waiting->clock.join(barrier.joined);
        waiting->state = State::ready;
        m.ready_changed = true;
        const Instruction& i = m.program[waiting->at];
        uint32_t mask = waiting->mask;
        if (i.detail == kPopulation) {
            auto* d = waiting->lanes<uint32_t>(i.operands[2]);
            each_lane(mask, [&](int l) { d[l] = barrier.count; });
        } else if (i.detail == kAll || i.detail == kAny) {
            bool result = i.detail == kAll ? barrier.all : barrier.any;
            uint32_t& p = waiting->predicate(i.operands[2]);
            p = (p & ~mask) | (result ? mask : 0);
        }
    }
    barrier = Barrier();
    ++m.shared->progress;
}

void barrier(Warp& warp, const Instruction& i, uint32_t mask) {
    Machine& m = *warp.machine;
    if (!m.together(warp, mask, warp.lanes_begun)) return;
    uint32_t id = uniform(warp, i.operands[0], mask, "barriers");
    if (id >= kBarriers) m.fail(warp, "barrier " + std::to_string(id) + " of " + std::to_string(kBarriers));
    uint32_t all = uint32_t(warp.block->warps.size()) * kLanes;
    uint32_t count = i.operands[1] == kNone ? all : uniform(warp, i.operands[1], mask, "thread counts");
    if (!count || count % kLanes) m.fail(warp, "barrier " + std::to_string(id) + " for " + std::to_string(count) + " threads: a multiple of 32 is needed");
    if (count > all) m.fail(warp, "barrier " + std::to_string(id) + " for " + std::to_string(count) + " threads: the block has " + std::to_string(all));
    Barrier& b = warp.block->barriers[id];
    if (b.arrived && b.expected != count) {
        m.fail(warp, "comes to barrier " + std::to_string(id) + " for " + std::to_string(count) + " threads, where other warps wait for " +
                         std::to_string(b.expected) + " (line " + std::to_string(b.line) + ")");
    }
    b.expected = count;
    b.line = i.line;
    b.arrived += kLanes;
    b.joined.join(warp.clock);
    warp.clock.advance(warp.actor);
    if (i.detail >= kPopulation) {
        uint32_t p = warp.predicate(i.operands[3]) & mask;
        b.count += uint32_t(__builtin_popcount(p));
        b.all &= p == mask;
        b.any |= p != 0;
    }
    if (i.detail != kArrive) {
        warp.state = State::waiting;
        m.ready_changed = true;
        warp.barrier = id;
        b.waiting.push_back(&warp);
    }
    if (b.arrived >= b.expected) release(m, b);
}

void cluster_arrive(Warp& warp, const Instruction&, uint32_t mask) {
    Machine& m = *warp.machine;
    if (!m.together(warp, mask, warp.lanes_begun)) return;
    if (warp.at_cluster_barrier) m.fail(warp, "arrives at the barrier of its cluster again, and has not waited there");
    Cluster& cluster = *warp.block->cluster;
    warp.at_cluster_barrier = true;
    warp.cluster_phase = cluster.phase;
    ++cluster.arrived;
    cluster.joined.join(warp.clock);
    warp.clock.advance(warp.actor);
    m.meet_cluster(cluster);
}

void cluster_wait(Warp& warp, const Instruction&, uint32_t mask) {
    Machine& m = *warp.machine;
    if (!m.together(warp, mask, warp.lanes_begun)) return;
    if (!warp.at_cluster_barrier) m.fail(warp, "waits at the barrier of its cluster, and has not arrived there");
    Cluster& cluster = *warp.block->cluster;
    warp.at_cluster_barrier = false;
    if (cluster.phase > warp.cluster_phase) {
        warp.clock.join(cluster.met);
        return;
    }
    warp.at_cluster_barrier = true;
    warp.state = State::waiting;
    warp.barrier = kClusterBarrier;
    m.ready_changed = true;
    cluster.waiting.push_back(&warp);
}

void sleep(Warp& warp, const Instruction&, uint32_t) { warp.yields = true; }
void nothing(Warp&, const Instruction&, uint32_t) {}
void wait_previous(Warp& warp, const Instruction&, uint32_t) { warp.waited = true; }

void clock32(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<uint32_t>(i.operands[0]);
    uint32_t now = uint32_t(warp.machine->steps >> i.detail);
    each_lane(mask, [=](int l) { d[l] = now; });
}
void clock64(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<uint64_t>(i.operands[0]);
    uint64_t now = warp.machine->steps;
    each_lane(mask, [=](int l) { d[l] = now; });
}

}  // namespace

void Machine::meet_cluster(Cluster& cluster) {
    if (!cluster.arrived || cluster.arrived < cluster.live) return;
    cluster.met = cluster.joined;
    cluster.joined = Clock();
    cluster.arrived = 0;
    ++cluster.phase;
    cluster.reached = cluster.reached_late, cluster.reached_late = false;
    for (Warp* waiting : cluster.waiting) {
        waiting->clock.join(cluster.met);
        waiting->at_cluster_barrier = false;
        waiting->state = State::ready;
    }
    cluster.waiting.clear();
    ready_changed = true;
    ++shared->progress;
}

void add_control(std::vector<HandlerEntry>& table) {
    table.insert(table.end(), {
        {"bra", &branch}, {"brx.idx", &branch_indexed}, {"barrier.cluster.arrive", &cluster_arrive}, {"barrier.cluster.wait", &cluster_wait}, {"exit", &end_lanes}, {"trap", &trap}, {"bar", &barrier},
        {"nanosleep", &sleep}, {"nop", &nothing}, {"griddepcontrol.wait", &wait_previous}, {"clock.b32", &clock32}, {"clock.b64", &clock64},
    });
}

}  // namespace ptx
