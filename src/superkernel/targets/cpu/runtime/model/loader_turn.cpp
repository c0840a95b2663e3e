// loader_turn.cpp: threads that load objects, counted; a fork waits until there are none.
#include "loader_turn.h"

#include <unistd.h>

#include <mutex>

namespace sk::model {
namespace {

constexpr int kForkPollUs = 50;
std::mutex turns_mutex;
int turns = 0;

}  // namespace

LoaderTurn::LoaderTurn() {
    const std::lock_guard<std::mutex> hold(turns_mutex);
    ++turns;
}

LoaderTurn::~LoaderTurn() {
    const std::lock_guard<std::mutex> hold(turns_mutex);
    --turns;
}

void LoaderTurn::before_fork() {
    for (;;) {
        turns_mutex.lock();
        if (turns == 0) return;
        turns_mutex.unlock();
        usleep(kForkPollUs);
    }
}

void LoaderTurn::after_fork() { turns_mutex.unlock(); }

}  // namespace sk::model
