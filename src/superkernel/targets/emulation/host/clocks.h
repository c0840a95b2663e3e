// clocks.h: vector clocks: what each core or warp knows of the others.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace emulation {

class Clock {  // core -> how far it is known to be
public:
    void resize(size_t cores) { at_.resize(cores, 0); }
    bool empty() const { return at_.empty(); }
    uint32_t operator[](size_t core) const { return core < at_.size() ? at_[core] : 0; }
    void advance(size_t core) { ++at_[core]; }
    void clear() { at_.clear(); }
    void copy_first_half() {  // what is known in the first half is known in the second half as well
        size_t half = at_.size() / 2;
        for (size_t i = 0; i < half; ++i) at_[half + i] = std::max(at_[half + i], at_[i]);
    }
    void join(const Clock& other) {
        if (at_.size() < other.at_.size()) at_.resize(other.at_.size(), 0);
        for (size_t i = 0; i < other.at_.size(); ++i) at_[i] = std::max(at_[i], other.at_[i]);
    }

private:
    std::vector<uint32_t> at_;
};

}  // namespace emulation
