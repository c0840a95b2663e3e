// clock.cpp: loops that must not be timed from Python: parallel regions, launches from C, runs of packages from C, and
// calls at a fixed rate.
#include <errno.h>
#include <time.h>

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

// Calls once() every `period_ns`, sleeping until it is due, and stores the microseconds of each call. Returns how many there
// were: fewer when `limit_ns` have passed, or less than 0 when a call failed.
template <class Once>
static int64_t time_at_rate(Once once, int64_t calls, int64_t period_ns, int64_t limit_ns, double* microseconds) {
    const auto now = [] {
        timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
    };
    const int64_t start = now();
    for (int64_t i = 0; i < calls; ++i) {
        const int64_t due = start + (i + 1) * period_ns;
        const timespec until{time_t(due / 1'000'000'000), long(due % 1'000'000'000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
        }
        const int64_t begin = now();
        if (!once()) return -1;
        const int64_t end = now();
        microseconds[i] = double(end - begin) / 1e3;
        if (end - start >= limit_ns) return i + 1;
    }
    return calls;
}

extern "C" int64_t time_runs_at_rate(int32_t (*run)(void*, int32_t, int32_t, void* const*, void* const*), void* context,
                                     int32_t entry, int32_t shape, void* const* inputs, void* const* outputs,
                                     int64_t calls, int64_t period_ns, int64_t limit_ns, double* microseconds) {
    const auto once = [&] { return run(context, entry, shape, inputs, outputs) == 0; };
    return time_at_rate(once, calls, period_ns, limit_ns, microseconds);
}

// A callable of Python: `call` is PyObject_CallNoArgs, `forget` is Py_DecRef. The caller holds the interpreter's lock.
extern "C" int64_t time_objects_at_rate(void* (*call)(void*), void (*forget)(void*), void* object, int64_t calls,
                                        int64_t period_ns, int64_t limit_ns, double* microseconds) {
    const auto once = [&] {
        void* const returned = call(object);
        if (returned != nullptr) forget(returned);
        return returned != nullptr;
    };
    return time_at_rate(once, calls, period_ns, limit_ns, microseconds);
}

// What a call costs that does nothing: a peer of runs.
extern "C" int32_t run_nothing(void*, int32_t, int32_t, void* const*, void* const*) { return 0; }

// A peer that only reads: `inputs[0]` to `outputs[0]`, a line of 64 bytes after the other.
extern "C" int32_t run_reading(void*, int32_t, int32_t, void* const* inputs, void* const* outputs) {
    for (const char* line = static_cast<const char*>(inputs[0]); line < static_cast<const char*>(outputs[0]); line += 64) {
        (void)*static_cast<const volatile char*>(line);
    }
    return 0;
}
