// outside.cpp: who stands outside a launch: agents that set and wait for its events, and a parallel region around it.
#include <omp.h>
#include <superkernel/events.h>

extern "C" {

// wait for one word, then set another; 0 when the first never comes
int relay(const int64_t* word, int64_t* answer, int64_t tries) {
    while (!sk_event_is_set(word)) {
        if (--tries == 0) return 0;
        __builtin_ia32_pause();
    }
    sk_event_set(answer);
    return 1;
}

void clear(int64_t* word) { sk_event_clear(word); }

// call from one thread inside a region of two
int call_inside(void (*call)(void), int thread) {
    int team = 0;
#pragma omp parallel num_threads(2)
    {
        if (omp_get_thread_num() == thread) {
            team = omp_get_num_threads();
            call();
        }
    }
    return team;
}
}
