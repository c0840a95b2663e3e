// clock.cpp: loops that must not be timed from Python: parallel regions, launches from C, and runs of packages from C.
#include <chrono>
#include <cstdint>

using Clock = std::chrono::steady_clock;

static void nothing(void*) {}

static double microseconds_each(Clock::time_point start, int64_t times) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / double(times);
}

extern "C" double time_regions(void (*parallel)(void (*)(void*), void*, unsigned, unsigned), int threads, int64_t times) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < times; ++i) parallel(nothing, nullptr, unsigned(threads), 0);
    return microseconds_each(start, times);
}

extern "C" double time_launches(void* (*begin)(void*), int32_t (*run)(void*, const uint64_t*, const int64_t*, int32_t),
                                void (*end)(void*), void* program, const uint64_t* values, const int64_t* sizes,
                                int64_t times) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < times; ++i) {
        void* running = begin(program);
        run(running, values, sizes, 0);
        end(running);
    }
    return microseconds_each(start, times);
}

extern "C" double time_runs(int32_t (*run)(void*, int32_t, int32_t, void* const*, void* const*), void* context,
                            int32_t entry, int32_t shape, void* const* inputs, void* const* outputs, int64_t times) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < times; ++i) run(context, entry, shape, inputs, outputs);
    return microseconds_each(start, times);
}
