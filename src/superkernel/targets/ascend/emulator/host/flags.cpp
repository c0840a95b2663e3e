// flags.cpp: the flags between cores. Each core counts, per flag, how often it was set for it and not yet waited for.
#include <algorithm>

#include "machine.h"

namespace emulator {

namespace {
constexpr uint64_t kSignalCost = 8, kWaitCost = 4;
enum Mode { all_of_class = 0, vectors_of_block = 1, across_block = 2 };

// Pipes that a signal can stand in: of those, the scalar unit and "all" are not allowed, and a core has its own only.
constexpr int kVector = 1, kMatrix = 2, kToLocal = 3, kIn = 4;  // as in kernel_operator.h

bool is_pipe_of(Class kind, int pipe) {
    if (kind == Class::cube) return pipe == kMatrix || pipe == kToLocal || pipe == kIn || pipe == kFixPipe;
    return pipe == kVector || pipe == kIn || pipe == kOutPipe;
}

uint32_t round_key(Class kind, int64_t flag, uint32_t core) { return uint32_t(kind) << 24 | uint32_t(flag) << 16 | core; }
}  // namespace

void Machine::raise(const Core& by, Core& core, int64_t flag, uint64_t time, const Clock& clock) {
    auto& count = core.flags[flag];
    if (int64_t(count.size()) >= settings.flag_limit) {
        fail(by, "sets flag " + std::to_string(flag) + " of the " + who(core) + " for the " + std::to_string(count.size() + 1) +
                     "th time before it is waited for; a flag counts to " + std::to_string(settings.flag_limit));
    }
    count.emplace_back(time, clock);
    if (core.state == State::waiting && core.waits_for == flag) core.state = State::ready;
    ++shared->progress;
}

// All cores of a class: the k-th round is complete when every core has arrived k times.
void Machine::arrive_all(const Core& core, const Queued& signal) {
    int64_t flag = signal.flag;
    auto& mine = arrived[round_key(core.kind, flag, core.index)];
    if (int64_t(mine.size()) >= settings.flag_limit) {
        fail(core, "arrives at flag " + std::to_string(flag) + " for the " + std::to_string(mine.size() + 1) +
                       "th time while others of its class have not arrived; a flag counts to " + std::to_string(settings.flag_limit));
    }
    mine.emplace_back(signal.time, signal.clock);
    uint64_t time = 0;
    Clock clock;
    for (auto& other : cores) {
        if (other->kind != core.kind) continue;
        auto& theirs = arrived[round_key(core.kind, flag, other->index)];
        if (theirs.empty()) return;
    }
    for (auto& other : cores) {
        if (other->kind != core.kind) continue;
        auto& theirs = arrived[round_key(core.kind, flag, other->index)];
        time = std::max(time, theirs.front().first);
        clock.join(theirs.front().second);
        theirs.pop_front();
    }
    for (auto& other : cores) {
        if (other->kind == core.kind) raise(core, *other, flag, time, clock);
    }
}

// Inside a block: a cube sets the flag of each of its vectors; the vectors together set that of their cube.
void Machine::arrive_block(const Core& core, const Queued& signal) {
    int64_t flag = signal.flag;
    if (core.kind == Class::cube) {
        for (auto& other : cores) {
            if (other->kind == Class::vector && other->block == core.block) raise(core, *other, flag, signal.time, signal.clock);
        }
        return;
    }
    arrived[round_key(core.kind, flag, core.index)].emplace_back(signal.time, signal.clock);
    uint64_t time = 0;
    Clock clock;
    for (int pass = 0; pass < 2; ++pass) {
        for (auto& other : cores) {
            if (other->kind != Class::vector || other->block != core.block) continue;
            auto& theirs = arrived[round_key(core.kind, flag, other->index)];
            if (theirs.empty()) return;
            if (pass == 1) {
                time = std::max(time, theirs.front().first);
                clock.join(theirs.front().second);
                theirs.pop_front();
            }
        }
    }
    for (auto& other : cores) {
        if (other->kind == Class::cube && other->block == core.block) raise(core, *other, flag, time, clock);
    }
}

void Machine::deliver(const Core& core, const Queued& signal) {
    if (signal.mode == all_of_class) {
        arrive_all(core, signal);
    } else {
        arrive_block(core, signal);
    }
}

// A signal stands in the queue of its pipe: transfers of that pipe land first, those of other pipes need not.
void Machine::signal(int pipe, uint64_t config) {
    Core& core = *running;
    auto mode = int(config >> 4 & 3);
    auto flag = int64_t(config >> 8 & 15);
    bool cube = core.kind == Class::cube;
    if ((config & 1) == 0 || config >> 12) stop("ffts_cross_core_sync with the malformed configuration " + std::to_string(config));
    if (!is_pipe_of(core.kind, pipe)) {
        stop("ffts_cross_core_sync on pipe " + std::to_string(pipe) + ": a signal stands in a pipe of its own core, " +
             (cube ? "PIPE_M, PIPE_MTE1, PIPE_MTE2 or PIPE_FIX" : "PIPE_V, PIPE_MTE2 or PIPE_MTE3") +
             "; never in PIPE_S or PIPE_ALL");
    }
    if (mode != all_of_class && mode != across_block) {
        stop("ffts_cross_core_sync with mode " + std::to_string(mode) + "; only 0 (a class) and 2 (a block) are known");
    }
    if (mode == across_block && (!settings.cubes || !settings.vectors)) {
        stop("sets flag " + std::to_string(flag) + " inside a block that has one class of cores only");
    }
    int64_t known = mode == all_of_class ? (cube ? settings.cube_flag : settings.vector_flag)
                                         : (cube ? settings.cube_to_vectors_flag : settings.vectors_to_cube_flag);
    if (flag != known) {
        stop("sets flag " + std::to_string(flag) + " in mode " + std::to_string(mode) + "; a " + (cube ? "cube" : "vector") +
             " core sets flag " + std::to_string(known) + " in that mode");
    }
    check_told(core, "sets flag " + std::to_string(flag));
    core.polls = 0;
    step(kSignalCost);
    note(What::signal, uint32_t(flag), uint64_t(mode) | uint64_t(pipe) << 8);
    if (pipe == (cube ? kFixPipe : kOutPipe)) settle(core);
    Queued signal{pipe, core.clock, core.time, 0, core.op, {}, mode, flag};
    core.clock.advance(core.actor);
    bool behind = std::any_of(core.queue.begin(), core.queue.end(), [&](const Queued& one) { return one.pipe == pipe; });
    if (behind) {
        core.queue.push_back(std::move(signal));
    } else {
        deliver(core, signal);
    }
    step(1);
}

void Machine::wait(int64_t flag) {
    Core& core = *running;
    if (flag < 0 || flag >= kFlags) stop("waits for flag " + std::to_string(flag) + "; flags are 0 to 15");
    if (!core.has_ffts_base) stop("wait_flag_dev before set_ffts_base_addr");
    check_told(core, "waits for flag " + std::to_string(flag));
    core.polls = 0;
    step(kWaitCost);
    note(What::wait_begin, uint32_t(flag));
    read_ahead();
    while (core.flags[flag].empty()) {
        core.state = State::waiting;
        core.waits_for = flag;
        give_way();
    }
    core.waits_for = -1;
    auto& [time, clock] = core.flags[flag].front();
    core.time = std::max(core.time, time);
    core.clock.join(clock);
    core.flags[flag].pop_front();
    ++shared->progress;
    note(What::wait_end, uint32_t(flag));
    step(1);
}

// A second launch must find every flag as the first one did.
void Machine::check_leaks(const std::string& found) {
    std::string text;
    int left = 0;
    for (auto& core : cores) {
        for (int flag = 0; flag < kFlags; ++flag) {
            size_t waiting = core->flags[flag].size();
            size_t rounds = arrived[round_key(core->kind, flag, core->index)].size();
            if (!waiting && !rounds) continue;
            if (++left > 8) continue;
            text += "\n  flag " + std::to_string(flag) + ", " + who(*core) + ": ";
            if (waiting) text += "set " + std::to_string(waiting) + " times and never waited for";
            if (rounds) text += std::string(waiting ? "; " : "") + "arrived " + std::to_string(rounds) + " times without the others";
        }
    }
    if (left) error = "flags are " + found + ": " + std::to_string(left) + " of them" + text;
}

}  // namespace emulator
