// Kernels for the tests of what users pass: they show that they ran, add, and copy.
#include <superkernel/kernel.h>

#include <cstdint>
#include <cstring>

constexpr int kElements = 12;

extern "C" void mark(int64_t* ran) { ++*ran; }

extern "C" void add(const float* x, const float* y, float* z) {
    for (int i = 0; i < kElements; ++i) z[i] = x[i] + y[i];
}

extern "C" void add_many(const float* x, const float* y, float* z, int64_t count) {
    for (int64_t i = 0; i < count; ++i) z[i] = x[i] + y[i];
}

extern "C" void increase(float* x) {
    for (int i = 0; i < kElements; ++i) x[i] += 1;
}

extern "C" void copy(const void* x, int64_t bytes, void* y) { std::memcpy(y, x, bytes); }

extern "C" void touch(const void*, void*) {}

// one number of each type, as it arrived, in eight bytes each
#define STORE(name, type) \
    extern "C" void store_##name(type value, int64_t* out) { *out = 0; std::memcpy(out, &value, sizeof value); }
STORE(bool, bool)
STORE(int8, int8_t)
STORE(uint8, uint8_t)
STORE(int16, int16_t)
STORE(uint16, uint16_t)
STORE(int32, int32_t)
STORE(uint32, uint32_t)
STORE(int64, int64_t)
STORE(uint64, uint64_t)
STORE(float32, float)
STORE(float64, double)

// names that cannot be chosen as they stand
namespace left {
void twin(float* x) { *x = 1; }
}  // namespace left
namespace right {
void twin(float* x) { *x = 2; }
}  // namespace right
static __attribute__((noinline, used)) void hidden(float* x) { *x = 3; }
