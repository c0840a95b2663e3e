// watchdog.cpp: one thread that watches all launches of the process and stops those that make no progress.
#include <algorithm>
#include <chrono>
#include <new>
#include <stdio.h>
#include <thread>

#include "program.h"
#include "rank_areas.h"
#include "rank_wait.h"
#include "superkernel/wait.h"

namespace sk::host {

namespace {

constexpr auto kPeriod = std::chrono::milliseconds(50);
constexpr int kIdlePeriods = 20;  // then block until a launch begins
constexpr int kPeriodsPerLook = 2;  // at the ranks of other processes
constexpr uint64_t kPauseNs = 500'000'000;  // a round this late: the process itself was stopped (Ctrl-Z, a debugger)

struct Watchdog {
    std::mutex mutex;
    std::condition_variable wake;
    std::vector<Running*> launches;
    bool started = false;
    bool asleep = false;
    int idle = 0;
    unsigned rounds = 0;
    uint64_t last_round_ns = 0;
};

Watchdog& watchdog() {
    static Watchdog* watchdog = new Watchdog;  // never destroyed: its thread may outlive static destruction
    return *watchdog;
}

// Any change in what the cores do, or in how far they are, is progress.
uint64_t progress_sum(const Running& running) {
    uint64_t sum = 0;
    for (int core = 0; core < running.cores; ++core) {
        sum = sum * 31 + running.progress[core].stamp.load();
        sum = sum * 31 + running.activity[core].step.load();
        sum = sum * 31 + running.activity[core].block.load();
        sum = sum * 31 + uint64_t(running.activity[core].doing.load());
    }
    for (int i = 0; i < running.program->facts.rendezvous_count; ++i) {
        sum = sum * 31 + running.rendezvous[i].generation.load();
    }
    return sum;
}

// How long a launch may wait for another rank.
double rank_limit_s(const Running& running, int core) {
    const double given = running.program->facts.rank_watchdog_s;
    return given > 0 ? given : running.activity[core].patience_ms.load() / 1000.0;
}

void inspect(Running& running, uint64_t now) {
    const uint64_t sum = progress_sum(running);
    if (running.last_change_ns == 0 || sum != running.last_sum) {
        running.last_sum = sum;
        running.last_change_ns = now;
        return;
    }
    const int awaiting = core_awaiting_rank(running);
    const double limit = awaiting < 0 ? running.program->facts.watchdog_s : rank_limit_s(running, awaiting);
    if (limit <= 0 || double(now - running.last_change_ns) < limit * 1e9) return;
    const bool endless = inside_sub_kernel(running);
    if (running.abort.load() != 0 && !endless) return;  // stopped, and the cores can leave
    char headline[160];
    const bool given = awaiting < 0 || running.program->facts.rank_watchdog_s > 0;
    snprintf(headline, sizeof headline, "no progress for %g s (%s), %s", limit,
             given ? "debug-watchdog" : "the time-out of the group of ranks",
             endless ? "stalled inside a sub-kernel" : "stalled in waits");
    describe(running, headline, running.report, sizeof running.report);
    running.reported.store(true);
    if (!endless) {
        running.stop(Fault::kStalled, 0, 0);
        return;
    }
    publish(running, running.report);
    if (running.program->facts.watchdog_exits != 0) end_process();
    running.last_change_ns = now;  // the next report comes after another period
}

void loop() {
    Watchdog& dog = watchdog();
    std::unique_lock<std::mutex> hold(dog.mutex);
    for (;;) {
        if (dog.launches.empty() && ++dog.idle > kIdlePeriods) {
            dog.asleep = true;
            dog.wake.wait(hold, [&] { return !dog.launches.empty(); });
            dog.asleep = false;
            dog.idle = 0;
        }
        if (!dog.launches.empty()) dog.idle = 0;
        const uint64_t now = now_ns();
        if (now - dog.last_round_ns > kPauseNs) {
            for (Running* running : dog.launches) running->last_change_ns = 0;
        }
        dog.last_round_ns = now;
        for (Running* running : dog.launches) inspect(*running, now);
        if (!dog.launches.empty() && ++dog.rounds % kPeriodsPerLook == 0) look_after_ranks();
        dog.wake.wait_for(hold, kPeriod);
    }
}

}  // namespace

void watch(Running* running) {
    Watchdog& dog = watchdog();
    running->last_change_ns = 0;
    bool wake;
    {
        const std::lock_guard<std::mutex> hold(dog.mutex);
        dog.launches.push_back(running);
        wake = dog.asleep;
        if (!dog.started) {
            dog.started = true;
            std::thread(loop).detach();
        }
    }
    if (wake) dog.wake.notify_one();
}

void lock_watchdog() { watchdog().mutex.lock(); }
void unlock_watchdog() { watchdog().mutex.unlock(); }

// In the child of a fork: neither the launches nor the watching thread are here.
void forget_launches() {
    Watchdog& dog = watchdog();
    dog.launches.clear();
    forget_rank_areas();
    dog.started = dog.asleep = false;
    new (&dog.wake) std::condition_variable;  // its waiter is not here either
}

void unwatch(Running* running) {
    Watchdog& dog = watchdog();
    const std::lock_guard<std::mutex> hold(dog.mutex);
    dog.launches.erase(std::find(dog.launches.begin(), dog.launches.end(), running));
}

}  // namespace sk::host
