// threads.h: how the library starts its threads, and waits until they have ended.
#pragma once

#include <pthread.h>
#include <stdint.h>

namespace sk::model {

// False: there is no thread. `processor` -1: it may run on any.
bool create_thread(pthread_t& thread, void* (*main)(void*), void* data, const char* name, int processor);

// A thread of the lowest priority that shall end: gives it the calling thread's processors, and where that is permitted the
// normal priority.
void make_normal(pthread_t thread);

// False: it has not ended within the time, and may be waited for again.
bool join_thread(pthread_t thread, uint64_t limit_ns);

// Neither this function nor join_thread is a cancellation point.
void sleep_ns(uint64_t ns);

}  // namespace sk::model
