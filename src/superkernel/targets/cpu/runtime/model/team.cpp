// team.cpp: threads that wait for calls by spinning, by sleeping, or first one and then the other.
//
// A call goes on without threads that do not arrive in time: the caller closes the formation, and a thread that comes
// later finds it closed. So a thread reads what it shall do only after all have joined.
#include "team.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "failure.h"
#include "library_lifetime.h"
#include "superkernel/wait.h"
#include "threads.h"

namespace sk::model {
namespace {

constexpr uint64_t kSpinNs = 100'000;        // of a thread that waits for the next call, SK_WAIT_BALANCED
constexpr uint64_t kCallerSpinNs = 200'000;  // of a caller that waits for the threads of its call
// On fewer processors than threads, spinning threads share one, and under a real-time policy the system never takes a spinning
// thread off it. So a thread that spins for the next call yields after this time, and one that waits inside a call sleeps.
constexpr uint64_t kMostSpinNs = 2'000'000;
constexpr uint64_t kGatherNapNs = 50'000;
constexpr uint64_t kPromptNs = 20'000;       // a thread that spins joins a call in less, if it has a processor
constexpr int kPollsPerClock = 64;           // looks between two readings of the clock
constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kLeastEarlyNs = 50'000;   // threads wake up and spin so long before an expected call,
constexpr uint64_t kMostEarlyNs = 500'000;   // up to this where their timers have been late
constexpr uint64_t kForgetting = 1024;       // each wake-up makes that time shorter by one part of so many
constexpr uint64_t kLateNs = 200'000;        // threads spin so long after an expected call that does not come
constexpr uint64_t kTimerSlackNs = 1'000;    // of threads that wake up by themselves; the system's own is 50 us
constexpr uint64_t kPromptEndNs = 100'000'000;  // ending a team waits so long for its threads
constexpr int kNumberShift = 32, kCoresShift = 16;
constexpr uint64_t kClosed = uint64_t(1) << 15, kCount = kClosed - 1;

std::mutex teams_mutex;
Team* teams = nullptr;  // that have threads
std::atomic<uint32_t> forks{0};

uint64_t formation(uint32_t number, int cores) { return uint64_t(number) << kNumberShift | uint64_t(cores) << kCoresShift; }
uint32_t number_of(uint64_t word) { return uint32_t(word >> kNumberShift); }
int cores_of(uint64_t word) { return int(word >> kCoresShift & 0xFFFF); }
int joined(uint64_t word) { return int(word & kCount); }

// Spins until over(); false: so many nanoseconds have passed.
template <class Over>
bool spin(Over over, uint64_t limit_ns) {
    const uint64_t start = now_ns();
    do {
        for (int i = 0; i < kPollsPerClock; ++i) {
            if (over()) return true;
            relax();
        }
    } while (now_ns() - start < limit_ns);
    return false;
}

// Blocks while the word has the value, until the time (0: as long as it takes); may return earlier.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, uint64_t until_ns = 0) {
    const timespec until{time_t(until_ns / kSecondNs), long(until_ns % kSecondNs)};
    const timespec* const limit = until_ns == 0 ? nullptr : &until;
    syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, value, limit, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

uint32_t fork_generation() { return forks.load(std::memory_order_relaxed); }

Team::Team(int workers, sk_wait wait, std::vector<int> processors, std::unique_ptr<AwakeProcessor> awake)
    : workers_(workers),
      wait_(wait),
      processors_(std::move(processors)),
      awake_(std::move(awake)),
      generation_(fork_generation()) {
    threads_.reserve(size_t(workers));  // threads have pointers to its items
}

// A thread that gets no processor, such as the one of the lowest priority on a busy machine, may take seconds to end. The team
// and the code of the library then stay until it has ended.
void Team::end(Team* team) noexcept {
    delete_ended();
    team->delist();
    if (team->is_here()) {
        team->tell_end();
        if (!team->join(kPromptEndNs)) {
            keep_library();
            team->abandoned_ = true;
            team->enlist();
            return;
        }
    }
    delete team;
}

void Team::delete_ended() noexcept {
    const std::lock_guard<std::mutex> hold(teams_mutex);
    for (Team** link = &teams; *link != nullptr;) {
        Team* const team = *link;
        if (team->abandoned_ && team->is_here() && team->join(0)) {
            *link = team->next_;
            delete team;
        } else {
            link = &team->next_;
        }
    }
}

void Team::enlist() noexcept {
    const std::lock_guard<std::mutex> hold(teams_mutex);
    if (std::exchange(enlisted_, true)) return;
    watch_exit();
    next_ = std::exchange(teams, this);
}

void Team::delist() noexcept {
    const std::lock_guard<std::mutex> hold(teams_mutex);
    if (!std::exchange(enlisted_, false)) return;
    Team** link = &teams;
    while (*link != this) link = &(*link)->next_;
    *link = next_;
}

// `again`: try once more after a thread could not be started.
bool Team::start(bool again) {
    if (started_ && !again) return int(threads_.size()) == workers_;
    started_ = true;
    enlist();
    while (int(threads_.size()) < workers_) {
        const size_t index = threads_.size();
        threads_.push_back({this, int(index) + 1, {}});
        const int processor = processors_.empty() ? -1 : processors_[index % processors_.size()];
        if (!create_thread(threads_.back().thread, thread_main, &threads_.back(), "superkernel", processor)) {
            threads_.pop_back();
            return false;
        }
    }
    return true;
}

// The thread of the lowest priority stays on the processors that were named for the model's threads, as the others do.
SK_CALL_PATH void Team::call_begins() {
    const int processor = sched_getcpu();
    const bool allowed = processors_.empty() || std::find(processors_.begin(), processors_.end(), processor) != processors_.end();
    awake_->call_begins(allowed ? processor : AwakeProcessor::kNone);
    if (__builtin_expect(!awake_tried_.load(std::memory_order_relaxed), 0) && allowed && is_here()) start_awake(processor);
}

void Team::start_awake(int processor) {
    if (awake_tried_.exchange(true)) return;
    enlist();
    has_awake_thread_ = create_thread(awake_thread_, awake_main, this, "sk-awake", processor);
}

void Team::tell_end() noexcept {
    ending_.store(true);
    call_.fetch_add(1);
    FutexWord(call_, sleepers_).wake();
    if (awake_ != nullptr) awake_->end();
    if (has_awake_thread_) make_normal(awake_thread_);
}

// False: the time has passed, and threads are left.
bool Team::join(uint64_t limit_ns) noexcept {
    const uint64_t start = now_ns();
    const auto left = [&] { return limit_ns - std::min(limit_ns, now_ns() - start); };
    while (!threads_.empty()) {
        if (!join_thread(threads_.back().thread, left())) return false;
        threads_.pop_back();
    }
    if (has_awake_thread_ && !join_thread(awake_thread_, left())) return false;
    has_awake_thread_ = false;
    return true;
}

void Team::before_fork() { teams_mutex.lock(); }

void Team::after_fork(bool child) {
    if (child) forks.fetch_add(1);
    teams_mutex.unlock();
}

void Team::end_all() noexcept {
    const std::lock_guard<std::mutex> hold(teams_mutex);
    for (Team* team = teams; team != nullptr; team = team->next_) {
        if (team->is_here()) team->tell_end();
    }
    for (Team* team = teams; team != nullptr;) {
        Team* const next = team->next_;
        if (team->is_here()) team->join(UINT64_MAX);
        if (team->abandoned_) delete team;
        team = next;
    }
    teams = nullptr;
}

void* Team::thread_main(void* data) {
    const Worker worker = *static_cast<Worker*>(data);
    prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
    worker.team->serve(worker.core);
    return nullptr;
}

void* Team::awake_main(void* team) {
    prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
    static_cast<Team*>(team)->awake_->run();
    return nullptr;
}

// The number of the next call.
uint32_t Team::await_call(uint32_t seen, uint64_t& early_ns) {
    const auto called = [&] { return call_.load(std::memory_order_acquire) != seen; };
    switch (wait_) {
        case SK_WAIT_SPIN:
            while (!spin(called, kMostSpinNs)) sched_yield();
            break;
        case SK_WAIT_BALANCED:
            if (!spin(called, kSpinNs)) await_balanced(seen, early_ns);
            break;
        case SK_WAIT_SLEEP:
            while (!called()) sleep(seen, 0);
            break;
    }
    return call_.load(std::memory_order_acquire);
}

// Where calls have a rhythm, the thread wakes up before the next one: to be woken by its caller takes longer than many
// calls, the more so in a virtual machine, and a team is as late as the last of its threads. Timers are late as well.
void Team::await_balanced(uint32_t seen, uint64_t& early_ns) {
    const auto called = [&] { return call_.load(std::memory_order_acquire) != seen; };
    while (!called()) {
        const uint64_t expected = expected_ns_.load(std::memory_order_relaxed), now = now_ns();
        if (expected + kLateNs <= now) {
            unaware_.fetch_add(1);
            sleep(seen, 0);
            unaware_.fetch_sub(1);
        } else if (expected > now + early_ns) {
            const uint64_t until = expected - early_ns;
            sleep(seen, until);
            const uint64_t awake = now_ns();
            if (awake < until) continue;  // woken
            const uint64_t wanted = std::min(kLeastEarlyNs + (awake - until), kMostEarlyNs);
            early_ns = std::max(wanted, early_ns - early_ns / kForgetting);
        } else if (spin(called, expected + kLateNs - now)) {
            return;
        }
    }
}

// Until a call, or the time; may return earlier.
void Team::sleep(uint32_t seen, uint64_t until_ns) {
    sleepers_.fetch_add(1);
    if (call_.load() == seen) futex_wait(call_, seen, until_ns);
    sleepers_.fetch_sub(1);
}

void Team::tell_expected() {
    if (unaware_.load(std::memory_order_relaxed) != 0) FutexWord(call_, sleepers_).wake();
}

// A system that takes idle processors for occupied ones, as the guest of a virtual machine does, wakes threads on the
// processor of their caller. There they get no time while it waits for them, until its time slice ends. So the caller's
// processor is taken out of those that they may use; the one that was taken out before is given back.
SK_CALL_PATH void Team::keep_off(int processor) {
    if (processor == kept_off_ || processor < 0 || processor >= CPU_SETSIZE || !processors_.empty()) return;
    for (const Worker& worker : threads_) {
        cpu_set_t allowed;
        if (pthread_getaffinity_np(worker.thread, sizeof allowed, &allowed) != 0) continue;
        if (kept_off_ >= 0) CPU_SET(kept_off_, &allowed);
        CPU_CLR(processor, &allowed);
        if (CPU_COUNT(&allowed) > 0) pthread_setaffinity_np(worker.thread, sizeof allowed, &allowed);
    }
    kept_off_ = processor;
}

// True: all threads have joined the call, and its work begins.
bool Team::join_call(uint32_t number, int core) {
    uint64_t word = formation_.load(std::memory_order_acquire);
    do {
        if (number_of(word) != number || (word & kClosed) != 0 || core >= cores_of(word)) return false;
    } while (!formation_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel));
    const auto decided = [&] {
        word = formation_.load(std::memory_order_acquire);
        return number_of(word) != number || (word & kClosed) != 0 || joined(word) == cores_of(word) - 1;
    };
    while (!spin(decided, kSpinNs)) sleep_ns(kGatherNapNs);
    return number_of(word) == number && (word & kClosed) == 0;
}

void Team::serve(int core) {
    uint32_t seen = 0;
    uint64_t early_ns = kLeastEarlyNs;  // by which this thread wakes up before an expected call
    for (;;) {
        seen = await_call(seen, early_ns);
        if (ending_.load()) return;
        if (!join_call(seen, core)) continue;
        work_(data_, core);
        done_.fetch_add(1);
        if (caller_asleep_.load() != 0) FutexWord(done_, caller_asleep_).wake();
    }
}

SK_CALL_PATH bool Team::take_threads(std::unique_lock<std::mutex>& hold, uint64_t patience_ns) {
    if (patience_ns != 0) return hold.try_lock();
    hold.lock();
    return true;
}

// True: the threads of a call have joined it.
SK_CALL_PATH bool Team::gather(int cores, Work work, void* data, uint64_t patience_ns) {
    if (cores > size() || !start(patience_ns == 0)) return false;
    work_ = work;
    data_ = data;
    done_.store(0, std::memory_order_relaxed);
    const uint32_t number = call_.load(std::memory_order_relaxed) + 1;
    formation_.store(formation(number, cores), std::memory_order_release);
    call_.store(number);
    if (sleepers_.load() != 0) {
        keep_off(sched_getcpu());
        FutexWord(call_, sleepers_).wake();
    }
    uint64_t word = 0;
    const auto complete = [&] { return joined(word = formation_.load(std::memory_order_acquire)) == cores - 1; };
    const uint64_t prompt_ns = patience_ns == 0 ? kPromptNs : std::min(patience_ns, kPromptNs);
    if (spin(complete, prompt_ns)) return true;
    keep_off(sched_getcpu());  // threads that spin share it with a caller that has moved
    if (patience_ns == 0) {
        while (!spin(complete, kSpinNs)) sleep_ns(kGatherNapNs);
    } else if (!spin(complete, patience_ns - prompt_ns)) {
        while (!complete()) {
            if (formation_.compare_exchange_weak(word, word | kClosed, std::memory_order_acq_rel)) return false;
        }
    }
    return true;
}

SK_CALL_PATH void Team::await_end(int cores) {
    const auto finished = [&] { return done_.load(std::memory_order_acquire) == uint32_t(cores - 1); };
    const uint64_t limit_ns = wait_ == SK_WAIT_SPIN ? kMostSpinNs : wait_ == SK_WAIT_SLEEP ? kCallerSpinNs / 10 : kCallerSpinNs;
    if (spin(finished, limit_ns)) return;
    caller_asleep_.store(1);
    for (uint32_t seen = done_.load(); seen != uint32_t(cores - 1); seen = done_.load()) futex_wait(done_, seen);
    caller_asleep_.store(0);
}

SK_CALL_PATH bool Team::run(int cores, Work work, void* data, uint64_t patience_ns) {
    std::unique_lock<std::mutex> hold(mutex_, std::defer_lock);
    if (!take_threads(hold, patience_ns) || !gather(cores, work, data, patience_ns)) return false;
    work(data, 0);
    await_end(cores);
    return true;
}

}  // namespace sk::model
