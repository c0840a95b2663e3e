// formation.cpp: the load of the machine -> whether a launch asks for a team, and whether it goes on without it.
//
// A team waits for its slowest core, and a core without a processor is as slow as a scheduler's time slice: on a crowded
// machine the calling thread alone is faster. The whole plan on one core gives the same bits.
#include "formation.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>

#include "blocking.h"
#include "cancellation.h"

namespace sk::host {

std::atomic<bool> crowded{false};

namespace {

constexpr uint64_t kShowUpNs = 100'000;       // a worker that sleeps needs some 50 us to wake up on an idle machine
constexpr uint64_t kLateJoinNs = 500'000;     // later than any wake-up: the thread had no processor
constexpr uint64_t kSuspicionNs = 100'000'000;
constexpr uint64_t kTimeSliceNs = 3'000'000;  // a core that was blocked this long lost its processor
constexpr uint64_t kPausePerLoss = 5;
constexpr uint64_t kFirstPauseNs = 20'000'000;
constexpr uint64_t kLongestPauseNs = 2'000'000'000;
constexpr uint64_t kCalmPerLoss = 20;         // teams were worth their loss if they went well for this many times as long
constexpr uint64_t kLeastLossNs = 1'000'000;
constexpr uint64_t kAffinityNs = 1'000'000'000;  // how long the processor count is taken to be true
constexpr uint32_t kTeamBit = 1u << 30, kSoloBit = 1u << 31;

enum class Policy : int32_t { kAuto, kAlways, kNever };
std::atomic<Policy> policy{Policy::kAuto};

std::atomic<int> processor_limit{INT_MAX};  // the CPU quota
std::atomic<int> affinity{0};
std::atomic<uint64_t> affinity_until_ns{0};
std::atomic<int> busy{0};

std::atomic<uint64_t> last_suspicion_ns{0}, next_look_ns{0}, calm_since_ns{0}, pause_ns{kFirstPauseNs};

std::atomic<bool> region_used{false}, region_unsafe{false};

int processors() {
    const uint64_t now = now_ns();
    if (now >= affinity_until_ns.load(std::memory_order_relaxed)) {
        cpu_set_t set;
        CPU_ZERO(&set);
        // more processors than the set has room for: EINVAL
        const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(sysconf(_SC_NPROCESSORS_ONLN));
        affinity.store(std::max(1, count), std::memory_order_relaxed);
        affinity_until_ns.store(now + kAffinityNs, std::memory_order_relaxed);
    }
    return std::min(affinity.load(std::memory_order_relaxed), processor_limit.load(std::memory_order_relaxed));
}

// Threads of the whole machine that run or want to run, this one included; < 0: unknown.
int runnable_threads() {
    // not kept open: the library may be unloaded, and a daemon closes what it has not opened
    const WithoutCancellation here;
    const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    char text[128];
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return -1;
    text[size] = '\0';
    int runnable = -1;
    return sscanf(text, "%*s %*s %*s %d/", &runnable) == 1 ? runnable : -1;
}

bool processors_lack_for(int more_threads) {
    const int runnable = runnable_threads();
    return runnable >= 0 && runnable + more_threads > sysconf(_SC_NPROCESSORS_ONLN);
}

// After a passing crowd, such as a process that computes now and then, teams are back at once. Where attempts fail one
// after the other the pause doubles: what failed attempts cost is a small share of the time, also where the machine's
// load does not show the crowd (others are bound to the same processors).
void found_crowd(uint64_t lost_ns) {
    const uint64_t now = now_ns();
    const bool was_calm = now - calm_since_ns.load() > kCalmPerLoss * std::max(lost_ns, kLeastLossNs);
    const uint64_t least = std::max(kFirstPauseNs, kPausePerLoss * lost_ns);
    const uint64_t pause = std::min(kLongestPauseNs, std::max(least, was_calm ? 0 : 2 * pause_ns.load()));
    pause_ns.store(pause);
    next_look_ns.store(now + pause);
    crowded.store(true);
}

bool still_crowded(int cores) {
    if (!crowded.load(std::memory_order_relaxed)) return false;
    const uint64_t now = now_ns();
    if (now < next_look_ns.load(std::memory_order_relaxed)) return true;
    if (processors_lack_for(cores - 1)) {
        next_look_ns.store(now + kFirstPauseNs);
        return true;
    }
    calm_since_ns.store(now);
    crowded.store(false);
    return false;
}

// How long a team may take to arrive: as long as it gains more than that. A core that has to wait for another core may
// wait for a time slice, so a launch gains from a team in a crowd if it computes longer than it may wait. 0: it does not.
uint64_t worth_waiting_ns(const Program& program) {
    const uint64_t solo_ns = program.solo_ns.load(std::memory_order_relaxed);
    const uint64_t may_wait_ns = kTimeSliceNs * uint64_t(1 + program.facts.blocking_steps);
    return solo_ns > 2 * may_wait_ns ? solo_ns / 4 : 0;
}

}  // namespace

bool solo_before_region(const Program& program) {
    const Facts& facts = program.facts;
    if (facts.needs_team != 0) return false;
    if (!region_is_safe()) return true;
    switch (policy.load(std::memory_order_relaxed)) {
        case Policy::kAlways: return false;
        case Policy::kNever: return true;
        case Policy::kAuto: break;
    }
    if (busy.load(std::memory_order_relaxed) + facts.cores > processors()) return true;
    return still_crowded(facts.cores) && worth_waiting_ns(program) == 0;
}

Part join_formation(Running& running, int core) {
    if (running.program->facts.needs_team != 0) return Part::kTeam;
    std::atomic<uint32_t>& formation = running.formation;
    uint32_t seen = formation.load(std::memory_order_acquire);
    if (core == 0) {
        const bool always = policy.load(std::memory_order_relaxed) == Policy::kAlways;
        const uint64_t start = now_ns(), patience = std::max(kShowUpNs, worth_waiting_ns(*running.program));
        while ((seen & kTeamBit) == 0) {
            if (!always && now_ns() - start > patience) {
                if (formation.compare_exchange_strong(seen, seen | kSoloBit)) {
                    wake_sleepers(formation, running.formation_sleepers);
                    if (processors_lack_for(0)) found_crowd(0);
                    return Part::kSolo;
                }
                continue;
            }
            if (now_ns() - start > kShowUpNs) sched_yield();
            relax();
            seen = formation.load(std::memory_order_acquire);
        }
        return Part::kTeam;
    }
    for (;;) {
        if ((seen & kSoloBit) != 0) return Part::kAbsent;
        const bool last = seen + 1 == uint32_t(running.cores - 1);
        if (formation.compare_exchange_weak(seen, (seen + 1) | (last ? kTeamBit : 0), std::memory_order_acq_rel)) {
            if (last) wake_sleepers(formation, running.formation_sleepers);
            break;
        }
    }
    const auto decided = [&] { return (formation.load(std::memory_order_acquire) & (kTeamBit | kSoloBit)) != 0; };
    for (int i = 0; i < kSpins && !decided(); ++i) relax();
    if (!decided()) block_until(running, FutexWord(formation, running.formation_sleepers), decided);
    return (formation.load(std::memory_order_acquire) & kTeamBit) != 0 ? Part::kTeam : Part::kAbsent;
}

BusyCores::BusyCores(int cores) : cores_(cores) { busy.fetch_add(cores, std::memory_order_relaxed); }
BusyCores::~BusyCores() { busy.fetch_sub(cores_, std::memory_order_relaxed); }

// After a short block one sample may be a thread of the system that ran for a moment; two in a row are a crowd.
void report_blocked(uint64_t ns) {
    if (!processors_lack_for(0)) return;
    const uint64_t now = now_ns();
    const bool again = now - last_suspicion_ns.exchange(now) < kSuspicionNs;
    if (again || ns > kTimeSliceNs) found_crowd(ns);
}

void report_late_team(uint64_t join_ns) {
    if (join_ns > kLateJoinNs) found_crowd(join_ns);
}

bool region_is_safe() { return !region_unsafe.load(std::memory_order_relaxed); }
void forget_load() {
    busy.store(0);
    crowded.store(false);
}

void region_begins() { region_used.store(true, std::memory_order_relaxed); }

}  // namespace sk::host

using namespace sk::host;

extern "C" {

// SUPERKERNEL_TEAM: 0 decide by the load, 1 always a team, 2 never.
void sk_team_policy(int32_t chosen) { policy.store(Policy(chosen)); }

// Whether launches run solo now because others keep the processors busy.
int32_t sk_machine_crowded() {
    if (policy.load() != Policy::kAuto) return 0;
    return crowded.load() || processors_lack_for(0) ? 1 : 0;
}

// The CPU quota, in processors.
void sk_processor_limit(int32_t count) { processor_limit.store(std::max(1, count)); }

// The OpenMP run time was loaded before this process was forked: its threads may be missing.
void sk_region_unsafe() { region_unsafe.store(true); }

// Whether a launch of this process, or of the process that it was forked from, has begun a region.
int32_t sk_region_used() { return region_used.load() ? 1 : 0; }

// In the child of a fork.
void sk_formation_forked() {
    region_unsafe.store(true);
    forget_load();
}
}
