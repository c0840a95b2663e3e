// hand_made.cpp: entries of launches as the emitter would write them, for packages that tests make without torch.
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#include <superkernel/entry.h>

namespace c10::detail {
[[noreturn]] void torchCheckFail(const char* function, const char* file, uint32_t line, const char* message);
}

namespace {

constexpr int kCount = 8;
#ifndef ADDED
#define ADDED 0  // a test compiles code that adds more
#endif

template <class T>
T* at(const sk::Launch* launch, int slot) {
    return reinterpret_cast<T*>(launch->slots[slot]);
}

void add_part(sk::Launch* launch, int first, int last) {
    const float *x = at<float>(launch, 0), *w = at<float>(launch, 1);
    float* sum = at<float>(launch, 2);
    for (int i = first; i < last; ++i) sum[i] = x[i] + w[i] + ADDED;
}

void reverse_part(sk::Launch* launch, int first, int last) {
    const float* sum = at<float>(launch, 2);
    float* y = at<float>(launch, 3);
    for (int i = first; i < last; ++i) y[i] = sum[kCount - 1 - i];
}

float busy_for(int multiplications, float value) {
    for (int i = 0; i < multiplications; ++i) asm volatile("" : "+x"(value = value * 1.0f));
    return value;
}

}  // namespace

// Slots x, w, sum, y: y is x + w backwards, so that each of two cores needs what the other has added.
extern "C" __attribute__((visibility("default"))) void add_reversed(sk::Launch* launch, int id) {
    sk::Core core(*launch, id < 0 ? 0 : id);
    sk::current = &core;
    if (id < 0 || launch->cores == 1) {
        add_part(launch, 0, kCount);
        reverse_part(launch, 0, kCount);
    } else {
        const int half = kCount / 2, first = id * half;
        add_part(launch, first, first + half);
        if (core.barrier(1, 1, 0, 2)) reverse_part(launch, first, first + half);
    }
    sk::current = nullptr;
}

// Slots state, y: the state is counted up and returned.
extern "C" __attribute__((visibility("default"))) void count_up(sk::Launch* launch, int) {
    float *state = at<float>(launch, 0), *y = at<float>(launch, 1);
    for (int i = 0; i < 2; ++i) y[i] = state[i] += 1;
}

// Slots x [2, 4, 3], y [2, 4]: sums of rows, and the number of bytes behind x.
extern "C" __attribute__((visibility("default"))) void sum_rows(sk::Launch* launch, int) {
    const float* x = at<float>(launch, 0);
    float* y = at<float>(launch, 1);
    for (int row = 0; row < 8; ++row) y[row] = x[3 * row] + x[3 * row + 1] + x[3 * row + 2];
}

// Slots x, y: y = x unless x is negative.
extern "C" __attribute__((visibility("default"))) void check_positive(sk::Launch* launch, int id) {
    sk::Core core(*launch, id < 0 ? 0 : id);
    sk::current = &core;
    core.begin(0, 0, 1);
    const float* x = at<float>(launch, 0);
    if (x[0] < -10) throw std::bad_alloc();
    if (x[0] < -1) sk_fail("x is far below zero");
    if (x[0] < 0) c10::detail::torchCheckFail("check", "here", 1, "index out of range in self");
    at<float>(launch, 1)[0] = x[0];
    sk::current = nullptr;
}

// Slots x, y: some microseconds of work, after which y = x.
extern "C" __attribute__((visibility("default"))) void work(sk::Launch* launch, int) {
    at<float>(launch, 1)[0] = busy_for(10000, at<float>(launch, 0)[0]);
}

// Slots started, go: waits, as a long call would.
extern "C" __attribute__((visibility("default"))) void wait_for_flag(sk::Launch* launch, int) {
    __atomic_store_n(at<int32_t>(launch, 1), 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(at<int32_t>(launch, 0), __ATOMIC_ACQUIRE) == 0) sk::relax();
}

// Slot y: for each of two parts, of 0.1 ms or more, the number of the thread that runs it.
extern "C" __attribute__((visibility("default"))) void tell_threads(sk::Launch* launch, int id) {
    for (int part = 0; part < 2; ++part) {
        if (id < 0 || launch->cores == 1 || part == id) {
            at<int32_t>(launch, 0)[part] = int32_t(syscall(SYS_gettid)) * (busy_for(100000, 1.0f) > 0);
        }
    }
}

// As targets/cpu/embedded_facts.py writes it.
extern "C" {
extern const char meet_facts[];
__attribute__((visibility("default"))) const char meet_facts[] = "1 2 1 0 0 1 [0:0,1:0] [8,8w]";
}

// Slots x, y: cores 0 and 1 meet in a rendezvous; there is no plan for one core.
extern "C" __attribute__((visibility("default"))) void meet(sk::Launch* launch, int id) {
    sk::Core core(*launch, id < 0 ? 0 : id);
    sk::current = &core;
    core.begin(0, id, 2);
    core.meet_in(core.rendezvous(0), 2, false);
    const int32_t* x = at<int32_t>(launch, 0);
    int32_t* y = at<int32_t>(launch, 1);
    y[id] = x[id];
    core.sync_all();
    const int32_t other = y[1 - id];
    core.sync_all();
    y[id] = 10 * x[id] + other;
    core.meeting_over(id);
#ifdef SK_TILE_BYTES
    char tile[SK_TILE_BYTES] = {};  // on the stack, as kernels keep them
    asm volatile("" : : "r"(tile) : "memory");
#endif
    sk::current = nullptr;
}
