// scheduler.cpp: cores as user-level threads. One runs at a time; the seed decides which, and for how long.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <thread>

#include "machine.h"

namespace emulator {

thread_local Machine* machine = nullptr;

namespace {

constexpr size_t kStack = 2 << 20, kGuard = 4096;  // room for what a sub-kernel keeps in local memory
constexpr uint64_t kRound = 1 << 15;  // steps between two looks around
constexpr int kInterrupted = -1;  // asked of Python: has the user pressed Ctrl-C
constexpr int64_t kLong = 4096;  // steps in a row, at most
constexpr uint64_t kPatience = 96;  // polls without any progress anywhere before a core counts as stuck

// Stacks are kept for the next launch of this thread.
struct Stacks {
    std::vector<void*> free;
    ~Stacks() {
        for (void* stack : free) munmap(stack, kStack + kGuard);
    }
    void* take() {
        if (!free.empty()) {
            void* stack = free.back();
            free.pop_back();
            return stack;
        }
        void* made = mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) throw std::runtime_error("no memory for the stack of a core");
        mprotect(made, kGuard, PROT_NONE);
        return made;
    }
};
thread_local Stacks stacks;

void core_main() {
    Machine& m = *machine;
    Core& core = *m.running;
    try {
        m.note(What::kernel_begin);
        m.entry[core.kind == Class::cube ? 0 : 1]();
        core.line = 0;
        if (!core.drained) m.stop("ends before its pipes are drained");
        m.finish_memory(core);
        m.note(What::kernel_end);
    } catch (const Stop&) {
    } catch (const std::exception& thrown) {
        if (!m.stopping) {
            m.error = m.who(core) + ", " + m.where(core) + ": a sub-kernel threw: " + thrown.what();
            m.stopping = true;
        }
    } catch (...) {
        if (!m.stopping) {
            m.error = m.who(core) + ", " + m.where(core) + ": a sub-kernel threw something that is no std::exception";
            m.stopping = true;
        }
    }
    core.state = State::done;
    ++m.shared->progress;
    _longjmp(m.scheduler, 1);
}

}  // namespace

void Machine::note(What what, uint32_t detail, uint64_t value) {
    if (!settings.record) return;
    Core& core = *running;
    records.push_back({++sequence, core.time, core.index, uint32_t(what), core.op, detail, value});
}

void Machine::stop(const std::string& why) {
    if (!stopping) {
        stopping = true;
        error = running ? who(*running) + ", " + where(*running) + ": " + why : why;
    }
    throw Stop{};
}

void Machine::fail(const Core& core, const std::string& why) {
    if (stopping) return;
    stopping = true;
    error = who(core) + ", " + where(core) + ": " + why;
}

// Whether this thread leaves a core because of an exception. The caller of the launch may itself be in a destructor.
bool Machine::unwinds() const { return std::uncaught_exceptions() > uncaught_outside; }

// Every primitive takes at least one step; between steps other cores may run.
void Machine::step(uint64_t cost) {
    Core& core = *running;
    if (stopping) {
        if (unwinds()) return;  // a destructor on the way out
        throw Stop{};
    }
    shared->steps = shared->steps + 1;
    core.time += cost;
    if (shared->steps % kRound == 0) look_around();
    disturb(core);
    if (--core.budget <= 0 || core.time > core.run_until) give_way();
}

void Machine::look_around() {
    if (agent_acts(kInterrupted)) stop("interrupted");
    SharedState& all = *shared;
    all.stalled_steps = all.progress == all.seen_progress ? all.stalled_steps + kRound : 0;
    all.seen_progress = all.progress;
    if (all.stalled_steps > settings.stall_limit) {
        stop("no progress in the last " + std::to_string(all.stalled_steps) + " steps: is this an endless loop?" + standing());
    }
}

void Machine::give_way() {
    Core& core = *running;
    if (_setjmp(core.context) == 0) _longjmp(scheduler, 1);
    if (stopping && !unwinds()) throw Stop{};
}

void Machine::resume(Core& core) {
    running = &core;
    if (_setjmp(scheduler)) {
        running = nullptr;
        return;
    }
    tell(core);
    if (core.stack) _longjmp(core.context, 1);
    core.stack = stacks.take();
    ucontext_t fresh;
    getcontext(&fresh);
    fresh.uc_stack.ss_sp = static_cast<char*>(core.stack) + kGuard;
    fresh.uc_stack.ss_size = kStack;
    fresh.uc_link = nullptr;
    makecontext(&fresh, core_main, 0);
    setcontext(&fresh);
}

// Under `held`, the seed chooses the cores that are held back: one core, one class, all but one, any.
void Machine::hold_some() {
    size_t count = cores.size(), one = random.below(count);
    uint64_t way = random.below(5);
    for (size_t i = 0; i < count; ++i) {
        const Core& core = *cores[i];
        is_held[i] = way == 0 ? i == one
                   : way == 1 ? i != one
                   : way == 2 ? core.kind == Class::cube
                   : way == 3 ? core.kind == Class::vector
                              : random.chance(512);
    }
    held_until = shared->steps + 32 + random.below(64 * count);
}

Core* Machine::choose() {
    ready.clear();
    for (auto& core : cores) {
        if (core->state == State::ready) ready.push_back(core.get());
    }
    if (ready.empty()) return nullptr;
    auto order = Order(settings.order);
    uint64_t mean = uint64_t(std::max(1, settings.quantum));
    if (order == Order::clock) {
        Core* first = ready[0];
        uint64_t second = UINT64_MAX;  // the time of the core after it: until then `first` goes on
        for (size_t i = 1; i < ready.size(); ++i) {
            second = std::min(second, std::max(first->time, ready[i]->time));
            if (ready[i]->time < first->time) first = ready[i];
        }
        first->budget = kLong;
        first->run_until = second;
        return first;
    }
    if (order != Order::random) {
        if (order == Order::held && shared->steps >= held_until) hold_some();
        // a core that polls and has seen no change lets other cores go first, as do cores that are held back
        auto later = [&](Core* core) {
            return (order == Order::held && is_held[core->index]) || (core->polls && core->poll_progress == shared->progress);
        };
        auto end = std::partition(ready.begin(), ready.end(), [&](Core* core) { return !later(core); });
        bool only_later = end == ready.begin();
        if (!only_later) ready.erase(end, ready.end());
        if (order == Order::priority && !only_later) {
            auto lower = [](Core* a, Core* b) { return a->priority < b->priority; };
            Core* best = *std::max_element(ready.begin(), ready.end(), lower);
            best->budget = int64_t(1 + random.below(8 * mean));
            if (random.chance(24)) best->priority = random.next();
            return best;
        }
    }
    Core* chosen = ready[random.below(ready.size())];
    chosen->budget = int64_t(1 + random.below(2 * mean));
    return chosen;
}

// Agents outside: armed when their trigger is set, they act some time later.
bool Machine::act(bool nobody_else) {
    for (size_t i = 0; i < agents.size(); ++i) {
        Agent& agent = agents[i];
        if (agent.done) continue;
        if (!agent.armed) {
            if (agent.trigger && *reinterpret_cast<const volatile uint64_t*>(agent.trigger) != agent.value) continue;
            agent.armed = true;
            agent.due = shared->steps + agent.delay;
            if (agent.answers) agent.clock.join(shared->lines[agent.trigger & ~(kLine - 1)].released);
        }
        if (nobody_else || shared->steps >= agent.due) {
            agent.done = true;
            ++shared->progress;
            if (settings.record) records.push_back({++sequence, 0, kNone, uint32_t(What::agent), kNone, uint32_t(i), 0});
            if (agent_acts(int(i))) {
                if (!stopping) error = "an agent outside the kernel failed";
                stopping = true;
            }
            return true;
        }
    }
    return false;
}

void Machine::write_word(uint64_t address, uint64_t value) {
    *reinterpret_cast<volatile uint64_t*>(address) = value;
    MemoryLine& known = shared->lines[address & ~(kLine - 1)];
    ++known.version;
    for (const auto& core : cores) known.time = std::max(known.time, core->state == State::done ? 0 : core->time);
    ++shared->progress;
}

// Words of the host are taken over while the launch runs, as other agents may set or poll them meanwhile.
bool Machine::follow_links() {
    bool changed = false;
    for (const Link& link : links) {
        auto* host = reinterpret_cast<volatile uint64_t*>(link.host);
        auto* device = reinterpret_cast<volatile uint64_t*>(link.device);
        if (link.to_host ? *device == 1 && *host != 1 : *host == 1 && *device == 0 && !taken.count(link.device)) {
            changed = true;
            if (link.to_host) {
                *host = 1;
            } else {
                taken.insert(link.device);
                write_word(link.device, 1);
            }
        }
    }
    return changed;
}

// No core can go on, but a thread of the host may still set a word.
bool Machine::wait_for_host() {
    constexpr double slice_s = 0.001;
    bool hopes = std::any_of(links.begin(), links.end(), [&](const Link& link) { return !link.to_host && !taken.count(link.device); });
    if (!hopes) return false;
    for (double waited = 0; waited < settings.patience_s; waited += slice_s) {
        if (follow_links()) return true;
        if (agent_acts(kInterrupted)) {
            error = "interrupted while cores wait for the host" + standing();
            stopping = true;
            return true;
        }
        std::this_thread::sleep_for(std::chrono::duration<double>(slice_s));
        shared->steps = shared->steps + 1;  // this is no endless loop of a sub-kernel
    }
    return false;
}

bool Machine::waits_in_vain(const Core& core) const {
    return core.polls > kPatience && core.poll_progress == shared->progress;
}

bool Machine::stuck() const {
    for (const auto& core : cores) {
        if (core->state == State::ready && !waits_in_vain(*core)) return false;
    }
    return true;
}

std::string Machine::who(const Core& core) const {
    char text[96];
    if (core.kind == Class::cube) {
        snprintf(text, sizeof text, "cube core of block %" PRId64, core.block);
    } else {
        snprintf(text, sizeof text, "vector core %" PRId64 " of block %" PRId64, core.sub_block, core.block);
    }
    return rank.empty() ? text : text + (" of " + rank);
}

std::string Machine::where(const Core& core) const {
    std::string text = core.op != kNone        ? "in op '" + ops[core.op].name + "'"
                       : core.last_op != kNone ? "after op '" + ops[core.last_op].name + "'"
                                               : "before its first op";
    if (core.line) text += " (line " + std::to_string(core.line) + ")";
    return text;
}

std::string Machine::standing() const {
    std::string text;
    std::map<std::string, std::vector<std::string>> groups;  // what, where -> cores
    for (const auto& core : cores) {
        if (core->state == State::done) continue;
        std::string what;
        if (core->state == State::waiting) {
            what = "wait for flag " + std::to_string(core->waits_for);
        } else if (!core->polls) {
            what = "run";
        } else {
            char address[32];
            snprintf(address, sizeof address, "0x%" PRIx64, core->polled);
            std::string name = name_at(core->polled);
            what = "poll " + (name == "memory" ? address : name) + " and see " + std::to_string(core->poll_value);
        }
        groups[what + ", " + where(*core)].push_back(who(*core));
    }
    for (const auto& [what, members] : groups) {
        text += "\n  " + std::to_string(members.size()) + " " + what + ": ";
        size_t shown = std::min<size_t>(members.size(), 4);
        for (size_t i = 0; i < shown; ++i) text += (i ? ", " : "") + members[i];
        if (members.size() > shown) text += ", ...";
    }
    return text;
}

void Machine::unwind() {
    stopping = true;
    for (auto& core : cores) {
        if (core->stack && core->state != State::done) resume(*core);
    }
}

void Machine::begin() {
    uncaught_outside = std::uncaught_exceptions();
    is_held.assign(cores.size(), false);
    for (auto& core : cores) core->priority = random.next();
    if (follows) check_leaks("set at the begin: the launch before left them so");
    if (follows && error.empty()) check_words_found();
    if (!error.empty()) stopping = true;
}

Turn Machine::turn() {
    act(false);
    if (!links.empty()) follow_links();
    if (stopping) return Turn::over;
    if (Order(settings.order) != Order::clock && random.chance(48)) land_any();
    Core* next = choose();
    if (next && !(waits_in_vain(*next) && stuck())) {
        resume(*next);
        return Turn::went_on;
    }
    if (land_any()) return Turn::went_on;
    if (std::all_of(cores.begin(), cores.end(), [](auto& core) { return core->state == State::done; })) return Turn::over;
    return act(true) || wait_for_host() ? Turn::went_on : Turn::blocked;
}

void Machine::release() {
    while (!stopping && act(true)) {}  // agents that were waiting for the last notify
    follow_links();
    for (const Link& link : links) {  // what the kernel has reset
        bool reset = taken.count(link.device) && *reinterpret_cast<const uint64_t*>(link.device) == 0;
        if (reset && !link.to_host) *reinterpret_cast<volatile uint64_t*>(link.host) = 0;
    }
    if (stopping) unwind();
    for (auto& core : cores) {
        if (core->stack) stacks.free.push_back(core->stack);
        core->stack = nullptr;
    }
    running = nullptr;
}

void Machine::check_end() {
    if (error.empty()) check_blocks();
    if (error.empty() && !settings.followed) check_leaks("left set at the end, a second launch would go wrong");
    if (error.empty() && !settings.followed) check_words();
}

void Machine::run() {
    begin();
    for (Turn turned = Turn::went_on; !stopping && turned != Turn::over;) {
        turned = turn();
        if (turned == Turn::blocked) {
            error = "deadlock: no core can go on" + standing();
            stopping = true;
        }
    }
    release();
    check_end();
}

}  // namespace emulator
