// loader_turn.cpp: threads that load objects, counted; a fork waits until there are none.
#include "loader_turn.h"

#include <mutex>

#include "superkernel/wait.h"
#include "threads.h"

namespace sk::model {
namespace {

constexpr uint64_t kForkPollNs = 50'000;
// A thread that forks in the constructor of an object holds the lock of the system's loader. Threads that load objects wait
// for that lock, so the fork cannot wait for them longer than this.
constexpr uint64_t kMostForkWaitNs = 1'000'000'000;
std::mutex turns_mutex;
int turns = 0;
bool fork_waits = false;  // no thread begins to load then: loads one after the other would block the fork for ever

}  // namespace

LoaderTurn::LoaderTurn() {
    for (;; sleep_ns(kForkPollNs)) {
        const std::lock_guard<std::mutex> hold(turns_mutex);
        if (fork_waits) continue;
        ++turns;
        return;
    }
}

LoaderTurn::~LoaderTurn() {
    const std::lock_guard<std::mutex> hold(turns_mutex);
    --turns;
}

void LoaderTurn::before_fork() {
    const uint64_t start = now_ns();
    for (;; sleep_ns(kForkPollNs)) {
        turns_mutex.lock();
        if (turns == 0 || now_ns() - start > kMostForkWaitNs) return;
        fork_waits = true;
        turns_mutex.unlock();
    }
}

void LoaderTurn::after_fork(bool child) {
    if (child) turns = 0;
    fork_waits = false;
    turns_mutex.unlock();
}

}  // namespace sk::model
