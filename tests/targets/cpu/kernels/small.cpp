// small.cpp: little kernels on 48 numbers whose results change if an op starts too early or a block is left out.
#include <stdint.h>
#include <superkernel/kernel.h>

using Number = uint64_t;  // wraps around, as numpy's int64 does

namespace {

constexpr int N = 48;

int first() { return N * sk::block_idx() / sk::block_num(); }
int last() { return N * (sk::block_idx() + 1) / sk::block_num(); }

void spin(int64_t times) {
    for (volatile int64_t i = 0; i < times; i = i + 1) {
    }
}

}  // namespace

extern "C" {

// reads its own part only
void scale(const Number* x, Number* z) {
    for (int i = first(); i < last(); ++i) z[i] = 5 * x[i] + 1;
}

// reads parts of other blocks
void mix(const Number* x, const Number* y, Number* z) {
    for (int i = first(); i < last(); ++i) z[i] = 3 * x[i] + y[N - 1 - i] + Number(i);
}

void blend(const Number* x, const Number* y, const Number* w, Number* z) {
    for (int i = first(); i < last(); ++i) z[i] = 3 * x[i] + 5 * y[(i + 1) % N] + 7 * w[(i + 2) % N];
}

void fold(Number* x, const Number* y) {
    for (int i = first(); i < last(); ++i) x[i] = 7 * x[i] + y[(5 * i + 1) % N];
}

// one block: every number depends on all before it
void chain(const Number* x, Number* z) {
    Number sum = 17;
    for (int i = 0; i < N; ++i) z[i] = sum = 31 * sum + x[i];
}

// an odd block is late, by as much as the caller says
void late(const Number* x, Number* z, int64_t times) {
    if (sk::block_idx() % 2 == 1) spin(times);
    for (int i = first(); i < last(); ++i) z[i] = 9 * x[i] + 4;
}

// reads w before the wait point and x behind it; says when it is done
void early(const Number* x, const Number* w, Number* z) {
    Number before[N];
    for (int i = first(); i < last(); ++i) before[i] = 3 * w[i];
    sk::wait_previous();
    for (int i = first(); i < last(); ++i) z[i] = 2 * x[(i + 7) % N] + before[i];
    sk::set_next();
}

// only even blocks work, and only every fourth says when it is done
void seldom(const Number* x, Number* z) {
    if (sk::block_idx() % 2 == 1) return;
    sk::wait_previous();
    const int end = sk::block_idx() + 1 == sk::block_num() ? N : N * (sk::block_idx() + 2) / sk::block_num();
    for (int i = first(); i < end; ++i) z[i] = 11 * x[N - 1 - i] + 2;
    if (sk::block_idx() % 4 == 0) sk::set_next();
}

// says that it is done, then lingers
void hasty(const Number* x, Number* z) {
    sk::wait_previous();
    for (int i = first(); i < last(); ++i) z[i] = 13 * x[(i + 1) % N];
    sk::set_next();
    spin(200);
}

// says that it is done without having waited for anything, unless there is something to do
void shy(const Number* x, Number* z, int64_t work) {
    if (work != 0) {
        sk::wait_previous();
        for (int i = first(); i < last(); ++i) z[i] = 3 * x[i];
    }
    sk::set_next();
}

// all blocks meet twice
void total(const Number* x, Number* part, Number* z) {
    Number sum = 0;
    for (int i = first(); i < last(); ++i) sum += x[i] * Number(i + 1);
    part[sk::block_idx()] = sum;
    sk::sync_all();
    sum = 0;
    for (int b = 0; b < sk::block_num(); ++b) sum += part[b];
    sk::sync_all();
    part[sk::block_idx()] = 0;
    for (int i = first(); i < last(); ++i) z[i] = 3 * x[i] + sum;
}

// two variants of one dynamic op; every block count does all the work
void twice(const Number* x, Number* z) {
    for (int i = sk::block_idx(); i < N; i += sk::block_num()) z[i] = 2 * x[i] + z[i];
}
void thrice(const Number* x, Number* z) {
    for (int i = sk::block_idx(); i < N; i += sk::block_num()) z[i] = 3 * x[N - 1 - i] + z[i];
}

// dynamic, and its blocks meet
void gather(const Number* x, Number* part, Number* z) {
    part[sk::block_idx()] = 0;
    for (int i = sk::block_idx(); i < N; i += sk::block_num()) part[sk::block_idx()] += x[i];
    sk::sync_all();
    Number sum = 0;
    for (int b = 0; b < sk::block_num(); ++b) sum += part[b];
    for (int i = sk::block_idx(); i < N; i += sk::block_num()) z[i] = x[i] + sum;
}
}
