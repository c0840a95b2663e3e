// fail.cpp: sub-kernels that say that they cannot go on.
#include <stdint.h>
#include <superkernel/kernel.h>

#include <stdexcept>
#include <string>

namespace {

constexpr int N = 48;
constexpr int64_t kOpen = 1000;

int first() { return N * sk::block_idx() / sk::block_num(); }
int last() { return N * (sk::block_idx() + 1) / sk::block_num(); }

// counts how many of them are alive, in a word of the caller's
struct Guard {
    int64_t& alive;
    explicit Guard(int64_t& word) : alive(word) { __atomic_add_fetch(&alive, 1, __ATOMIC_SEQ_CST); }
    ~Guard() { __atomic_sub_fetch(&alive, 1, __ATOMIC_SEQ_CST); }
};

}  // namespace

extern "C" {

// z = x[index]; word counts the frames that were left open
void pick(const int64_t* index, const int64_t* x, int64_t* z, int64_t* word) {
    const Guard guard(*word);
    for (int i = first(); i < last(); ++i) {
        try {
            if (index[i] < 0 || index[i] >= N) throw std::out_of_range(std::to_string(index[i]));
        } catch (const std::out_of_range& error) {
            sk::fail("index " + std::string(error.what()) + " is out of range");
            return;
        }
        z[i] = x[index[i]];
    }
}

// says what it is told: the text in z
void say(const char* text) { sk::fail(text); }

// the same in C, and without a text
void say_nothing(int64_t*) { sk_fail(nullptr); }

// block 0 fails, the others wait for it in a meeting it never comes to
void fail_in_meeting(const int64_t* index, int64_t* z) {
    if (sk::block_idx() == 0 && index[0] < 0) {
        sk::fail("not coming");
        return;
    }
    sk::sync_all();
    z[sk::block_idx()] = kOpen;
}

// fails before the wait point
void fail_early(const int64_t* index, const int64_t* x, int64_t* z) {
    if (index[0] < 0) {
        sk::fail("too early");
        return;
    }
    sk::wait_previous();
    for (int i = first(); i < last(); ++i) z[i] = x[i] + 1;
    sk::set_next();
}

// marks that it ran
void mark(const int64_t*, int64_t* z) { z[sk::block_idx()] = kOpen; }
}
