// random.h: numbers that depend on the seed alone.
#pragma once
#include <cstdint>

namespace emulation {

class Random {  // splitmix64
public:
    void seed(uint64_t value) { state_ = value * 0x9E3779B97F4A7C15u + 1; }
    uint64_t next() {
        uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t bound) { return bound ? next() % bound : 0; }
    bool chance(uint64_t of_1024) { return (next() & 1023) < of_1024; }

private:
    uint64_t state_ = 1;
};

}  // namespace emulation
