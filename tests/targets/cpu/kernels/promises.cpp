// promises.cpp: kernels that wait inside on every path, on some paths, or through other functions.
#include <stdint.h>
#include <superkernel/kernel.h>

#include <cmath>
#include <stdexcept>

using Number = uint64_t;

namespace {

constexpr int N = 48;

int first() { return N * sk::block_idx() / sk::block_num(); }
int last() { return N * (sk::block_idx() + 1) / sk::block_num(); }

void add(const Number* x, Number* z, Number what) {
    for (int i = first(); i < last(); ++i) z[i] = x[N - 1 - i] + what;
}

__attribute__((noinline)) void waits() { sk::wait_previous(); }
__attribute__((noinline)) void may_wait(int64_t choice) {
    if (choice > 0) sk::wait_previous();
}
__attribute__((noinline)) void waits_in_both(int64_t choice) { choice > 0 ? waits() : sk::wait_previous(); }
__attribute__((noinline)) void waits_in_turn(int64_t choice) {
    if (choice > 0) return waits_in_turn(choice - 1);
    sk::wait_previous();
}

}  // namespace

extern "C" {

void plain(const Number* x, Number* z, int64_t) { add(x, z, 1); }

void always(const Number* x, Number* z, int64_t) {
    sk::wait_previous();
    add(x, z, 1);
}

void only_if(const Number* x, Number* z, int64_t choice) {
    if (choice > 0) sk::wait_previous();
    add(x, z, 1);
}

void in_both(const Number* x, Number* z, int64_t choice) {
    if (choice > 0) {
        sk::wait_previous();
        add(x, z, 1);
    } else {
        sk::wait_previous();
        add(x, z, 2);
    }
}

void after_a_loop(const Number* x, Number* z, int64_t choice) {
    volatile int64_t sum = 0;
    for (int64_t i = 0; i < choice; ++i) sum = sum + i;
    sk::wait_previous();
    add(x, z, 1);
}

void in_a_loop(const Number* x, Number* z, int64_t choice) {
    for (int64_t i = 0; i < choice; ++i) sk::wait_previous();
    add(x, z, 1);
}

void early_return(const Number* x, Number* z, int64_t choice) {
    if (choice < 0) return;
    sk::wait_previous();
    add(x, z, 1);
}

void switch_before(const Number* x, Number* z, int64_t choice) {
    volatile double value = 1;
    switch (choice) {
        case 0: value = std::exp(value); break;
        case 1: value = std::sin(value); break;
        case 2: value = std::cos(value); break;
        case 3: value = std::tan(value); break;
        case 4: value = std::log(value); break;
        case 5: return;
        default: break;
    }
    sk::wait_previous();
    add(x, z, 1);
}

void switch_behind(const Number* x, Number* z, int64_t choice) {
    sk::wait_previous();
    switch (choice) {
        case 0: add(x, z, 1); break;
        case 1: add(x, z, 5); break;
        case 2: add(x, z, 7); break;
        case 3: add(x, z, 9); break;
        case 4: add(x, z, 11); break;
        default: return;
    }
}

void through_function(const Number* x, Number* z, int64_t) {
    waits();
    add(x, z, 1);
}

void through_both(const Number* x, Number* z, int64_t choice) {
    waits_in_both(choice);
    add(x, z, 1);
}

void through_some(const Number* x, Number* z, int64_t choice) {
    may_wait(choice);
    add(x, z, 1);
}

void through_recursion(const Number* x, Number* z, int64_t choice) {
    waits_in_turn(choice);
    add(x, z, 1);
}

void through_pointer(const Number* x, Number* z, int64_t choice) {
    void (*volatile function)() = choice > 0 ? waits : sk_wait_previous;
    function();
    add(x, z, 1);
}

void at_the_end(const Number*, Number*, int64_t) { sk::wait_previous(); }

#ifdef __EXCEPTIONS
void in_a_handler(const Number* x, Number* z, int64_t choice) {
    try {
        if (choice > 0) throw std::runtime_error("no");
    } catch (const std::runtime_error&) {
        return;
    }
    sk::wait_previous();
    add(x, z, 1);
}
#endif

// waits in every block but the second
void not_in_block_1(const Number* x, Number* z, int64_t) {
    if (sk::block_idx() != 1) sk::wait_previous();
    add(x, z, 1);
}

void signals_at_once(const Number* x, Number* z, int64_t choice) {
    if (choice > 0) sk::wait_previous();
    add(x, z, 1);
    sk::set_next();
}

void late(const Number* x, Number* z, int64_t times) {
    for (volatile int64_t i = 0; i < times; i = i + 1) {
    }
    for (int i = first(); i < last(); ++i) z[i] = x[i] + 4;
}
}
