// broken.cpp: sub-kernels that crash, never return, or do what they were declared not to do.
#include <stdint.h>
#include <stdlib.h>
#include <superkernel/kernel.h>
#include <time.h>

#include <stdexcept>

namespace {

int dig(volatile int* depth) {
    volatile int room[1024];
    room[0] = *depth + 1;
    return dig(room) + room[0];
}

void pass_ms(int64_t ms) {
    timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < ms * 1000000);
}

}  // namespace

extern "C" {

void null_write(int64_t*) { *reinterpret_cast<volatile int64_t*>(8) = 1; }

void abort_now(int64_t*) { abort(); }

void divide(int64_t* z) {
    volatile int64_t none = 0;
    z[0] = 7 / none;
}

void overflow(int64_t* z) {
    volatile int depth = 0;
    z[0] = dig(&depth);
}

void throw_out(int64_t*) { throw std::runtime_error("thrown by a sub-kernel"); }

void endless(int64_t* z) {
    for (volatile int64_t* word = z;;) *word = *word + 1;
}

// two blocks that meet
void meet(int64_t* z) {
    sk::sync_all();
    z[sk::block_idx()] = 1;
}

// only one of them comes
void stand_up(int64_t* z) {
    if (sk::block_idx() == 0) sk::sync_all();
    z[sk::block_idx()] = 1;
}

// reads through an index that the op before it stores: garbage unless the wait was kept
void follow(const int64_t* index, const int64_t* x, int64_t* z) {
    sk::wait_previous();
    z[sk::block_idx()] = x[index[sk::block_idx()]];
}

// every block takes 30 ms
void patient(int64_t* z) {
    pass_ms(30);
    z[sk::block_idx()] = sk::block_idx();
}

// returns once the last number is no longer negative
void held(int64_t* z) {
    while (__atomic_load_n(z + 47, __ATOMIC_ACQUIRE) < 0) continue;
    z[sk::block_idx()] = sk::block_idx();
}

// the blocks meet every 10 ms, 150 times
void march(int64_t* z) {
    for (int i = 0; i < 150; ++i) {
        pass_ms(10);
        sk::sync_all();
    }
    z[sk::block_idx()] = sk::block_idx();
}
}
