// launch_state.cpp: a plan and its slots -> one launch: on a team, or all of it on the calling thread.
#include "launch_state.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <linux/membarrier.h>

#include <algorithm>
#include <utility>

#include "../host/blocking.h"
#include "../host/formation.h"
#include "failure.h"
#include "kernel_checks.h"

namespace sk::model {
namespace {

constexpr uint64_t kShowUpNs = 100'000;    // a thread that sleeps needs some 50 us to wake up on an idle machine
constexpr uint64_t kAwakeNs = 20'000;      // a thread that spins needs 1 or 2 us; one that needs more has lost its processor
constexpr uint64_t kShortNs = 60'000;      // a plan that one thread finishes in this time does not wait for sleeping threads
constexpr uint64_t kWorthWakingNs = 20'000;  // a plan that one thread finishes sooner gains too little from threads that expect it
constexpr uint64_t kPauseNs = 100'000;     // calls that follow each other faster keep the threads awake
constexpr int kSleepSpins = 200;
constexpr uint64_t kLongSpinNs = 2'000'000;  // then this core sleeps: the one that it waits for may need its processor
constexpr int kPollsPerLook = 64;            // at the clock

thread_local LaunchState* launch_here = nullptr;
thread_local int core_here = 0;
thread_local jmp_buf* exit_point = nullptr;

void leave() { longjmp(*exit_point, 1); }

void request_tiling(Launch*, int) {}  // packages have no dynamic ops

// Every word that a packaged kernel waits for counts its sleepers.
bool wait_sleeping(Launch* launch, Activity*, uint32_t, void* word, std::atomic<uint32_t>* sleepers,
                   bool (*reached)(void*), void* condition) {
    const auto over = [&] { return reached(condition) || launch->abort.load(std::memory_order_acquire) != 0; };
    for (int i = 0; i < kSleepSpins; ++i) {
        if (over()) return reached(condition);
        relax();
    }
    FutexWord futex;
    futex.address = word;
    futex.sleepers = sleepers;
    host::block_until(*launch, futex, over);
    return reached(condition);
}

bool wait_spinning(Launch* launch, Activity* activity, uint32_t step, void* word, std::atomic<uint32_t>* sleepers,
                   bool (*reached)(void*), void* condition) {
    const uint64_t start = now_ns();
    do {
        for (int i = 0; i < kPollsPerLook; ++i) {
            if (reached(condition)) return true;
            relax();
        }
        if (launch->abort.load(std::memory_order_acquire) != 0) return reached(condition);
    } while (now_ns() - start < kLongSpinNs);
    return wait_sleeping(launch, activity, step, word, sleepers, reached, condition);
}

using Wait = decltype(Launch::wait);

Wait wait_function(sk_wait wait) {
    switch (wait) {
        case SK_WAIT_SPIN: return wait_spinning;
        case SK_WAIT_SLEEP: return wait_sleeping;
        case SK_WAIT_BALANCED: break;
    }
    return host::wait_for;
}

const bool membarrier_registered = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;

}  // namespace

void stop_kernel(const char* message) {
    launch_here->fail(launch_here->activity[core_here].step.load(std::memory_order_relaxed), message);
    leave();
    __builtin_unreachable();
}

LaunchState::LaunchState(PlanCode& code, const std::string& name, bool solo, sk_wait policy)
    : code_(code),
      name_(name),
      solo_(solo),
      slot_values_(std::max<size_t>(1, code.spec->slot_source.size())),
      slot_bytes_(slot_values_.size()),
      progress_(new Progress[size_t(code.spec->cores)]()),
      activity_(new Activity[size_t(code.spec->cores)]()),
      counters_(new MarkCounter[size_t(code.spec->counters)]()),
      rendezvous_(new Rendezvous[size_t(code.spec->rendezvous)]()),
      stamp_counts_(new uint32_t[size_t(code.spec->cores)]()) {
    const PlanSpec& plan = *code.spec;
    cores = plan.cores;
    slots = slot_values_.data();
    bytes = slot_bytes_.data();
    progress = progress_.get();
    activity = activity_.get();
    counters = counters_.get();
    rendezvous = rendezvous_.get();
    stamp_count = stamp_counts_.get();
    if (plan.copies_bytes > 0) {
        copies = static_cast<char*>(aligned_alloc(kApart, size_t(plan.copies_bytes + kApart - 1) / kApart * kApart));
        if (copies == nullptr) throw std::bad_alloc();
    }
    Launch::leave = sk::model::leave;
    request = request_tiling;
    wait = wait_function(policy);
    membarrier = membarrier_registered;
    for (size_t slot = 0; slot < plan.slot_source.size(); ++slot) {
        if (plan.slot_source[slot] < 0) set_slot(slot, plan.slot_literal[slot], 0);
    }
}

LaunchState::~LaunchState() { free(copies); }

// No exception may leave: the calling frames belong to the program, or to a thread of the team.
SK_CALL_PATH void LaunchState::enter(int core, int part) noexcept {
    LaunchState* const outer = launch_here;
    const int outer_core = core_here;
    jmp_buf* const outer_exit = exit_point;
    jmp_buf here;
    StopFunction* const stop_here = code_.stop_slot == nullptr ? nullptr : code_.stop_slot();
    const StopFunction outer_stop = stop_here == nullptr ? nullptr : *stop_here;
    launch_here = this;
    core_here = core;
    exit_point = &here;
    if (stop_here != nullptr) *stop_here = stop_kernel;
    const host::FloatMode::Scope mode(float_mode_);
    if (_setjmp(here) == 0) {
        const host::Entry entry = code_.program.facts.entry;
        if (code_.enter == nullptr) {
            entry(this, part);
        } else if (!code_.enter(entry, this, part)) {
            fail(activity[core].step.load(std::memory_order_relaxed), "a kernel threw an exception");
        }
    }
    launch_here = outer;
    core_here = outer_core;
    exit_point = outer_exit;
    if (stop_here != nullptr) *stop_here = outer_stop;
}

SK_CALL_PATH void LaunchState::run_core(void* state, int core) { static_cast<LaunchState*>(state)->enter(core, core); }

SK_CALL_PATH void LaunchState::run_whole_plan() { enter(0, cores == 1 ? 0 : host::kWholePlan); }

// How long the calling thread waits for the threads of a team; 0: it does not ask for them.
SK_CALL_PATH uint64_t LaunchState::patience_for(Team& team, bool measured) {
    const uint64_t solo_ns = code_.trial.solo_ns();
    if (!team.is_here()) return 0;
    const uint64_t begin = now_ns();
    const uint64_t pause = begin - std::min(begin, std::exchange(last_call_ns_, begin));
    const bool short_after_pause = solo_ns < kShortNs && pause > kPauseNs;
    if (team.wait_policy() == SK_WAIT_SPIN) {
        if (short_after_pause && !measured && code_.trial.gains_little()) return 0;
        return std::max(kAwakeNs, solo_ns / 2);
    }
    const uint64_t next = solo_ns < kWorthWakingNs ? 0 : rhythm_.called(begin);
    const bool crowded = host::solo_before_region(code_.program);
    team.expect_call(crowded ? 0 : next);
    if (crowded) return 0;
    if (short_after_pause && team.asleep()) {
        if (next != 0) team.tell_expected();
        return 0;
    }
    return std::max(team.asleep() ? kShowUpNs : kAwakeNs, solo_ns / 2);
}

// False: nothing was run.
SK_CALL_PATH bool LaunchState::run_team(Team& team, bool measured) {
    const uint64_t patience = patience_for(team, measured);
    if (patience == 0) return false;
    reset_team();
    const host::BusyCores counted(cores);
    if (team.run(cores, run_core, this, patience)) return true;
    host::report_blocked(patience);
    return false;
}

// A plan whose ops wait for each other inside cannot be run by one thread.
void LaunchState::run_whole_team(Team& team) {
    if (!team.is_here()) {
        sk::model::fail(SK_ERROR_FORKED, "entry '%s' needs %d threads, which are not in this process: it was forked; open the "
                        "package in the child", name_.c_str(), cores);
    }
    reset_team();
    const host::BusyCores counted(cores);
    if (!team.run(cores, run_core, this, 0)) {
        sk::model::fail(SK_ERROR_SYSTEM, "entry '%s' needs %d threads, and they could not be started; raise the "
                        "limits of threads and memory", name_.c_str(), cores);
    }
}

SK_CALL_PATH void LaunchState::run_better_way(Team& team) {
    TeamTrial& trial = code_.trial;
    const TeamTrial::Choice choice = trial.next();
    const uint64_t start = choice.measured ? now_ns() : 0;
    TeamTrial::Way way = choice.way;
    if (way == TeamTrial::Way::kSolo || !run_team(team, choice.measured)) {
        way = TeamTrial::Way::kSolo;
        run_whole_plan();
    }
    if (!choice.measured || way != choice.way) return;
    trial.measured(way, now_ns() - start);
    code_.program.solo_ns.store(trial.solo_ns(), std::memory_order_relaxed);
}

SK_CALL_PATH void LaunchState::run(Team* team) {
    float_mode_ = host::FloatMode::of_this_thread();
    if (solo_ || team == nullptr) {
        run_whole_plan();
    } else if (code_.spec->needs_team) {
        run_whole_team(*team);
    } else if (cores == 1) {
        run_whole_plan();
    } else {
        run_better_way(*team);
    }
    if (__builtin_expect(abort.load(std::memory_order_relaxed) != 0, 0)) throw_fault();
}

// A launch on a team never sees the state of an earlier one. The whole plan on one thread neither signals nor waits.
SK_CALL_PATH void LaunchState::reset_team() {
    const PlanSpec& plan = *code_.spec;
    for (int core = 0; core < cores; ++core) progress_[size_t(core)].stamp.store(0, std::memory_order_relaxed);
    for (int i = 0; i < plan.counters; ++i) counters_[size_t(i)].arrived.store(0, std::memory_order_relaxed);
    for (int i = 0; i < plan.rendezvous; ++i) {
        rendezvous_[size_t(i)].arrived.store(0, std::memory_order_relaxed);
        rendezvous_[size_t(i)].generation.store(0, std::memory_order_relaxed);
        rendezvous_[size_t(i)].calls.store(0, std::memory_order_relaxed);
    }
}

void LaunchState::reset_fault() {
    abort.store(0);
    fault.store(Fault::kNone);
    failure[0] = '\0';
}

void LaunchState::throw_fault() {
    const Fault why = fault.load();
    const uint32_t step = fault_step.load();
    const std::string message = failure;
    const std::vector<std::string>& steps = code_.spec->steps;
    const std::string where = step < steps.size() ? steps[step] : "an unknown step";
    reset_fault();
    if (why == Fault::kFailed) {
        sk::model::fail(SK_ERROR_KERNEL, "entry '%s': %s (in '%s')", name_.c_str(), message.c_str(), where.c_str());
    }
    sk::model::fail(SK_ERROR_KERNEL, "entry '%s' was stopped in '%s' (fault %u)", name_.c_str(), where.c_str(), unsigned(why));
}

}  // namespace sk::model
