// warp.cpp: instructions through which the lanes of one warp exchange values.
#include <algorithm>

#include "machine.h"

namespace ptx {

namespace {

uint32_t members_of(Warp& warp, uint32_t operand, uint32_t mask) {
    return operand == kNone ? kAllLanes : warp.lanes<uint32_t>(operand)[__builtin_ctz(mask)];
}

// shfl.sync: d, p, a, b, c, members; detail: 0 up, 1 down, 2 bfly, 3 idx
void shuffle(Warp& warp, const Instruction& i, uint32_t mask) {
    if (!warp.machine->together(warp, mask, members_of(warp, i.operands[5], mask))) return;
    uint32_t source[kLanes];
    std::memcpy(source, warp.lanes<uint32_t>(i.operands[2]), sizeof source);
    auto* d = warp.lanes<uint32_t>(i.operands[0]);
    auto *b = warp.lanes<uint32_t>(i.operands[3]), *c = warp.lanes<uint32_t>(i.operands[4]);
    uint32_t inside = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        int by = int(b[lane] & 31), segment = int(c[lane] >> 8 & 31), clamp = int(c[lane] & 31);
        int most = (lane & segment) | (clamp & ~segment), least = lane & segment, from = lane;
        bool valid = false;
        switch (i.detail) {
            case 0: from = lane - by, valid = from >= most; break;
            case 1: from = lane + by, valid = from <= most; break;
            case 2: from = lane ^ by, valid = from <= most; break;
            default: from = least | (by & ~segment), valid = from <= most; break;
        }
        if (!valid) from = lane;
        d[lane] = source[from];
        inside |= uint32_t(valid) << lane;
    }
    if (i.operands[1] != kNone) {
        uint32_t& p = warp.predicate(i.operands[1]);
        p = (p & ~mask) | (inside & mask);
    }
}

// vote.sync: d, a, members; detail: 0 all, 1 any, 2 uni, 3 ballot
void vote(Warp& warp, const Instruction& i, uint32_t mask) {
    if (!warp.machine->together(warp, mask, members_of(warp, i.operands[2], mask))) return;
    uint32_t votes = warp.predicate(i.operands[1]) & mask;
    if (i.detail == 3) {
        auto* d = warp.lanes<uint32_t>(i.operands[0]);
        each_lane(mask, [=](int l) { d[l] = votes; });
        return;
    }
    bool result = i.detail == 0 ? votes == mask : i.detail == 1 ? votes != 0 : votes == mask || votes == 0;
    uint32_t& p = warp.predicate(i.operands[0]);
    p = (p & ~mask) | (result ? mask : 0);
}

void active(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<uint32_t>(i.operands[0]);
    each_lane(mask, [=](int l) { d[l] = mask; });
}

// match.sync: d, p, a, members; detail: 0 any, 1 all; +2: 64 bits
void match(Warp& warp, const Instruction& i, uint32_t mask) {
    if (!warp.machine->together(warp, mask, members_of(warp, i.operands[3], mask))) return;
    uint64_t values[kLanes];
    for (int l = 0; l < kLanes; ++l) values[l] = i.detail & 2 ? warp.lanes<uint64_t>(i.operands[2])[l] : warp.lanes<uint32_t>(i.operands[2])[l];
    auto* d = warp.lanes<uint32_t>(i.operands[0]);
    bool same = true;
    for (int l = 0; l < kLanes; ++l) same &= !(mask >> l & 1) || values[l] == values[__builtin_ctz(mask)];
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        uint32_t equal = 0;
        for (int l = 0; l < kLanes; ++l) equal |= uint32_t(mask >> l & 1 && values[l] == values[lane]) << l;
        d[lane] = i.detail & 1 ? (same ? mask : 0) : equal;
    }
    if (i.operands[1] != kNone) {
        uint32_t& p = warp.predicate(i.operands[1]);
        p = (p & ~mask) | (same ? mask : 0);
    }
}

// redux.sync: d, a, members; detail: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor; +8: signed
void reduce(Warp& warp, const Instruction& i, uint32_t mask) {
    if (!warp.machine->together(warp, mask, members_of(warp, i.operands[2], mask))) return;
    auto *d = warp.lanes<uint32_t>(i.operands[0]), *a = warp.lanes<uint32_t>(i.operands[1]);
    uint32_t result = a[__builtin_ctz(mask)];
    for (uint32_t rest = mask & (mask - 1); rest; rest &= rest - 1) {
        uint32_t value = a[__builtin_ctz(rest)];
        bool is_signed = i.detail & 8, less = is_signed ? int32_t(value) < int32_t(result) : value < result;
        switch (i.detail & 7) {
            case 0: result += value; break;
            case 1: result = less ? value : result; break;
            case 2: result = less || value == result ? result : value; break;
            case 3: result &= value; break;
            case 4: result |= value; break;
            default: result ^= value; break;
        }
    }
    each_lane(mask, [=](int l) { d[l] = result; });
}

void elect(Warp& warp, const Instruction& i, uint32_t mask) {  // d, p, members
    if (!warp.machine->together(warp, mask, members_of(warp, i.operands[2], mask))) return;
    uint32_t leader = uint32_t(__builtin_ctz(mask));
    if (i.operands[0] != kNone) {
        auto* d = warp.lanes<uint32_t>(i.operands[0]);
        each_lane(mask, [=](int l) { d[l] = leader; });
    }
    uint32_t& p = warp.predicate(i.operands[1]);
    p = (p & ~mask) | 1u << leader;
}

void meet(Warp& warp, const Instruction& i, uint32_t mask) {  // bar.warp.sync
    warp.machine->together(warp, mask, members_of(warp, i.operands[0], mask));
}

}  // namespace

void add_warp(std::vector<HandlerEntry>& table) {
    table.insert(table.end(), {
        {"shfl.sync", &shuffle}, {"vote.sync", &vote}, {"activemask", &active}, {"match.sync", &match},
        {"redux.sync", &reduce}, {"elect.sync", &elect}, {"bar.warp.sync", &meet},
    });
}

}  // namespace ptx
