// clocks.h: vector clocks: what each core knows of the other cores, and which access to a place was the last.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace emulator {

class Clock {  // core -> how far it is known to be
public:
    void resize(size_t cores) { at_.resize(cores, 0); }
    bool empty() const { return at_.empty(); }
    uint32_t operator[](size_t core) const { return core < at_.size() ? at_[core] : 0; }
    void advance(size_t core) { ++at_[core]; }
    void join(const Clock& other) {
        if (at_.size() < other.at_.size()) at_.resize(other.at_.size(), 0);
        for (size_t i = 0; i < other.at_.size(); ++i) at_[i] = std::max(at_[i], other.at_[i]);
    }

private:
    std::vector<uint32_t> at_;
};

constexpr uint64_t kGrain = 4;  // bytes that are watched together
constexpr size_t kGrains = 64 / kGrain;
constexpr uint32_t kNobody = UINT32_MAX;

struct Access {
    uint32_t core = kNobody, at = 0, op = kNobody;
};

struct Cell {
    Access write;             // the last one that landed
    Access read;              // the last one, and below all those that it does not follow
    Access intent;            // a store that has not landed: in a cache, or on its way
    bool intent_cached = false;
    std::unique_ptr<std::vector<Access>> readers;  // per core, once there are two
};

struct Shadow {  // of one cache line
    Cell cells[kGrains];
};

}  // namespace emulator
