// launch.cpp: a super kernel and its arguments -> one parallel region in which every core runs its part of the plan.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <thread>

#include "formation.h"
#include "program.h"
#include "superkernel/wait.h"

namespace sk::host {
namespace {

// The OpenMP run time of this process, found by the caller; a second one is never loaded.
struct OpenMP {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*thread)() = nullptr;
    int (*team)() = nullptr;
} openmp;

constexpr int32_t kFinishedOk = 0;
constexpr uint32_t kSoloLaunchesPerMeasurement = 64;

// Programs by which a fork finds the locks that another thread may hold at that moment.
std::mutex registry_mutex;
std::vector<Program*> registry;

// The launch of the main thread, which Ctrl-C stops.
std::atomic<Running*> interruptible{nullptr};
std::atomic<bool> pending_interrupt{false};  // Ctrl-C came between two launches

std::atomic<bool> timing{false};  // launches are timed
thread_local uint64_t last_launch[2] = {0, 0};  // when the last launch of this thread was dispatched and when it completed

// Python's handler is not called: the stopped launch raises KeyboardInterrupt itself.
void on_interrupt(int) {
    Running* running = interruptible.load();
    if (running != nullptr) {
        running->stop(Fault::kInterrupted, 0, 0);
    } else {
        pending_interrupt.store(true);
    }
}

thread_local jmp_buf* exit_point = nullptr;

void leave() { longjmp(*exit_point, 1); }

// No exception may leave: the calling frames belong to OpenMP and to Python.
void enter(Running& running, int core, int part) noexcept {
    guard_this_thread();
    const Running* const outer = running_here;  // launches nest when a sub-kernel launches
    const int outer_core = core_here;
    jmp_buf* const outer_exit = exit_point;
    jmp_buf here;
    running_here = &running;
    core_here = core;
    exit_point = &here;
    const FloatMode::Scope mode(running.float_mode);
    if (_setjmp(here) == 0) running.program->facts.entry(&running, part);
    running_here = outer;
    core_here = outer_core;
    exit_point = outer_exit;
    Activity& activity = running.activity[core];
    activity.doing.store(Doing::kFinished, std::memory_order_release);
    wake_sleepers(activity.doing, activity.sleepers);
}

void run_core(Running& running, int core) { enter(running, core, core); }

// What the calling thread has computed so far, whatever others did meanwhile.
uint64_t thread_time_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

// One core runs the plan from top to bottom; the others have nothing to do.
void run_whole_plan(Running& running) {
    for (int core = 1; core < running.cores; ++core) running.activity[core].doing.store(Doing::kFinished);
    const Program& program = *running.program;
    const bool measured = program.solo_launches.fetch_add(1, std::memory_order_relaxed) % kSoloLaunchesPerMeasurement == 0;
    const uint64_t start = measured ? thread_time_ns() : 0;
    enter(running, 0, kWholePlan);
    if (measured) program.solo_ns.store(thread_time_ns() - start, std::memory_order_relaxed);
}

// OpenMP's join spins for milliseconds. On an oversubscribed machine that keeps the processor from the core that it
// waits for; this wait yields it.
void await_others(Running& running) {
    for (int core = 1; core < running.cores; ++core) {
        Activity& other = running.activity[core];
        const auto finished = [&other] { return other.doing.load(std::memory_order_acquire) == Doing::kFinished; };
        const FutexWord word(other.doing, other.sleepers);
        if (!wait_slowly(running, running.activity[0], uint32_t(running.program->facts.step_count), word, finished)) return;
    }
}

void region(void* data) {
    Running& running = *static_cast<Running*>(data);
    const int team = openmp.team();
    const int core = openmp.thread();
    if (core == 0) running.team = team;
    if (team < running.cores || core >= running.cores) return;
    switch (join_formation(running, core)) {
        case Part::kTeam:
            run_core(running, core);
            if (core == 0) await_others(running);
            break;
        case Part::kSolo:
            run_whole_plan(running);
            running.solo_end_ns = now_ns();
            break;
        case Part::kAbsent: break;
    }
}

// No region may begin (this is the child of a fork), or it got too few threads (it is nested in another one).
void run_without_region(Running& running) {
    if (running.program->facts.needs_team == 0) {
        run_whole_plan(running);
        return;
    }
    std::vector<std::thread> others;
    for (int core = 1; core < running.cores; ++core) others.emplace_back([&running, core] { run_core(running, core); });
    run_core(running, 0);
    for (std::thread& other : others) other.join();
}

void run_in_region(Running& running) {
    region_begins();
    running.solo_end_ns = 0;
    openmp.parallel(region, &running, unsigned(running.cores), 0);
    if (running.solo_end_ns != 0) report_late_team(now_ns() - running.solo_end_ns);
    if (running.team < running.cores) run_without_region(running);
}

void run_cores(Running& running) {
    if (running.cores == 1) {
        const BusyCores counted(1);
        enter(running, 0, running.program->facts.alone != 0 ? kWholePlan : 0);
    } else if (solo_before_region(*running.program)) {
        const BusyCores counted(1);
        run_whole_plan(running);
    } else if (!region_is_safe()) {
        run_without_region(running);
    } else {
        const BusyCores counted(running.cores);
        run_in_region(running);
    }
}

}  // namespace

// A fork copies locks in the state that other threads have left them in: it happens while none of ours is held.
static void before_fork() {
    registry_mutex.lock();
    for (Program* program : registry) program->pool_mutex.lock();
    lock_watchdog();
}

static void after_fork() {
    unlock_watchdog();
    for (Program* program : registry) program->pool_mutex.unlock();
    registry_mutex.unlock();
}

static void after_fork_in_child() {
    for (Program* program : registry) program->running = 0;  // those threads are not here
    forget_launches();
    sk_formation_forked();
    after_fork();
}

Interrupts::Interrupts(bool wanted) : wanted_(wanted) {
    if (!wanted_) return;
    struct sigaction ours = {};
    ours.sa_handler = on_interrupt;
    sigaction(SIGINT, &ours, &before_);
}

Interrupts::~Interrupts() {
    if (!wanted_) return;
    sigaction(SIGINT, &before_, nullptr);
    if (pending_interrupt.exchange(false)) raise(SIGINT);
}

int32_t run(Running* running, const uint64_t* values, const int64_t* bytes, const Interrupts& interrupts) {
    const Program& program = *running->program;
    static std::once_flag once;
    std::call_once(once, install_crash_handlers);
    if (program.facts.checked_steps != nullptr) {
        if (!fill_slots(*running, values, bytes)) return int32_t(running->fault.load());  // before anything is copied
        values = begin_check(*running, values, bytes);
        if (values == nullptr) {
            running->stop(Fault::kNoRoom, 0, 0);
            return int32_t(Fault::kNoRoom);
        }
    }
    if (!fill_slots(*running, values, bytes)) return int32_t(running->fault.load());
    watch(running);
    Running* const outer = interrupts.wanted() ? interruptible.exchange(running) : nullptr;
    if (interrupts.wanted() && pending_interrupt.exchange(false)) on_interrupt(SIGINT);
    const bool timed = running->stamp_room != 0;
    if (timed) {
        running->began_ns = sk::now_ns();
        running->began_ticks = sk::ticks();
    }
    running->team = 0;
    running->float_mode = FloatMode::of_this_thread();
    run_cores(*running);
    if (timed) {
        running->ended_ticks = sk::ticks();
        running->ended_ns = sk::now_ns();
    }
    if (interrupts.wanted()) interruptible.store(outer);
    unwatch(running);
    if (running->check != nullptr) end_check(*running);
    if (timing.load(std::memory_order_relaxed)) {
        last_launch[0] = running->dispatched_ns;
        last_launch[1] = running->completed_ns = sk::now_ns();
    }
    return running->abort.load() == 0 ? kFinishedOk : int32_t(running->fault.load());
}

}  // namespace sk::host

using namespace sk::host;

extern "C" {

void sk_host_openmp(void* parallel, void* thread, void* team) {
    openmp.parallel = reinterpret_cast<decltype(openmp.parallel)>(parallel);
    openmp.thread = reinterpret_cast<decltype(openmp.thread)>(thread);
    openmp.team = reinterpret_cast<decltype(openmp.team)>(team);
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(before_fork, after_fork, after_fork_in_child); });
}

Program* sk_program_create(const Facts* facts) {
    auto* program = new Program;
    program->facts = *facts;
    program->name = facts->name;
    program->report_path = facts->report_path;
    program->texts.assign(facts->step_text, facts->step_text + facts->step_count);
    program->texts.push_back("the end of the launch");
    program->slot_source.assign(facts->slot_source, facts->slot_source + facts->slot_count);
    program->slot_literal.assign(facts->slot_literal, facts->slot_literal + facts->slot_count);
    program->source_offset.assign(facts->source_offset, facts->source_offset + facts->source_count);
    program->source_bytes.assign(facts->source_bytes, facts->source_bytes + facts->source_count);
    const std::lock_guard<std::mutex> hold(registry_mutex);
    registry.push_back(program);
    return program;
}

// Refuse launches from now on, unless one is running; returns how many are. The binary may be unloaded after 0.
int32_t sk_program_close(Program* program) {
    const std::lock_guard<std::mutex> hold(program->pool_mutex);
    if (program->running == 0) {
        program->closed = true;
        for (Running* idle : program->pool) free_arena(*idle);
    }
    return program->running;
}

// Only when no thread can reach it: a thread may still be entering a launch that will be refused.
void sk_program_destroy(Program* program) {
    {
        const std::lock_guard<std::mutex> hold(registry_mutex);
        registry.erase(std::find(registry.begin(), registry.end(), program));
    }
    for (Running* running : program->pool) free_running(running);
    delete program;
}

// A launch in three parts, so that the control agent of dynamic ops can be given it before it runs.
// Null: the program is closed.
Running* sk_launch_begin(Program* program) {
    const uint64_t now = timing.load(std::memory_order_relaxed) ? sk::now_ns() : 0;
    Running* running = nullptr;
    {
        const std::lock_guard<std::mutex> hold(program->pool_mutex);
        if (program->closed) return nullptr;
        ++program->running;
        if (!program->pool.empty()) {
            running = program->pool.back();
            program->pool.pop_back();
        }
    }
    if (running == nullptr) {
        running = make_running(*program);
        running->leave = leave;
    }
    running->dispatched_ns = now;
    return running;
}

// Switches the timing of launches, from dispatch to completion.
void sk_time_launches(int32_t wanted) { timing.store(wanted != 0); }

// Dispatch and completion of the calling thread's last launch.
void sk_last_launch(uint64_t* two) { memcpy(two, last_launch, sizeof last_launch); }

int32_t sk_launch_run(Running* running, const uint64_t* values, const int64_t* bytes, int32_t interrupts) {
    const Interrupts handled(interrupts != 0);
    return run(running, values, bytes, handled);
}

void sk_launch_end(Running* running) {
    reset(*running);
    auto* program = const_cast<Program*>(running->program);
    const std::lock_guard<std::mutex> hold(program->pool_mutex);
    --program->running;
    program->pool.push_back(running);
}

int32_t sk_program_running(Program* program) {
    const std::lock_guard<std::mutex> hold(program->pool_mutex);
    return program->running;
}

// what went wrong, and what was recorded
int32_t sk_launch_fault(Running* running) { return int32_t(running->fault.load()); }
const char* sk_launch_report(Running* running) { return running->reported.load() ? running->report : ""; }
uint32_t sk_launch_fault_step(Running* running) { return running->fault_step.load(); }
const char* sk_launch_failure(Running* running) { return running->failure; }
int64_t sk_launch_fault_detail(Running* running) { return running->fault_detail.load(); }
// Four readings of clocks, then how many time stamps each core has taken, then these, core by core.
void sk_launch_record(Running* running, uint64_t* room) {
    const uint64_t clock[] = {running->began_ns, running->ended_ns, running->began_ticks, running->ended_ticks};
    memcpy(room, clock, sizeof clock);
    room += 4;
    auto* stamps = reinterpret_cast<sk::TimeStamp*>(room + running->cores);
    for (int core = 0; core < running->cores; ++core) {
        const uint32_t count = running->stamp_count[core];
        room[core] = count;
        memcpy(stamps, running->stamps + size_t(core) * running->stamp_room, count * sizeof *stamps);
        stamps += count;
    }
}

}  // extern "C"
