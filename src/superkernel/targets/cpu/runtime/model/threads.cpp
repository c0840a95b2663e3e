// threads.cpp: stacks, signals and processors of new threads; waits by the monotonic clock.
#include "threads.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "superkernel/wait.h"

namespace sk::model {
namespace {

constexpr size_t kStackBytes = size_t(2) << 20;  // of a thread at least: kernels keep tiles on the stack
constexpr uint64_t kJoinPollNs = 200'000;
constexpr uint64_t kNsPerSecond = 1'000'000'000;

// The attributes of the program's threads, with a larger stack where theirs is small.
struct Attributes {
    pthread_attr_t value;

    Attributes() {
        size_t bytes = 0;
        pthread_attr_init(&value);
        if (pthread_attr_getstacksize(&value, &bytes) == 0 && bytes < kStackBytes) pthread_attr_setstacksize(&value, kStackBytes);
    }
    ~Attributes() { pthread_attr_destroy(&value); }
    Attributes(const Attributes&) = delete;
};

}  // namespace

bool create_thread(pthread_t& thread, void* (*main)(void*), void* data, const char* name, int processor) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's threads
    const Attributes attributes;
    const bool created = pthread_create(&thread, &attributes.value, main, data) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!created) return false;
    pthread_setname_np(thread, name);
    if (processor < 0) return true;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    pthread_setaffinity_np(thread, sizeof set, &set);  // was tried before: see check_processors
    return true;
}

void make_normal(pthread_t thread) {
    const sched_param normal{};
    pthread_setschedparam(thread, SCHED_OTHER, &normal);
    cpu_set_t allowed;
    if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) == 0) {
        pthread_setaffinity_np(thread, sizeof allowed, &allowed);
    }
}

bool join_thread(pthread_t thread, uint64_t limit_ns) {
    const uint64_t start = now_ns();
    while (pthread_tryjoin_np(thread, nullptr) != 0) {
        if (now_ns() - start >= limit_ns) return false;
        sleep_ns(kJoinPollNs);
    }
    return true;
}

void sleep_ns(uint64_t ns) {
    const timespec time{time_t(ns / kNsPerSecond), long(ns % kNsPerSecond)};
    syscall(SYS_nanosleep, &time, nullptr);
}

}  // namespace sk::model
