// call_rhythm.h: the times of calls -> when the next one is expected.
#pragma once

#include <stdint.h>

#include <algorithm>

namespace sk::model {

// Control loops and servers under load call at a steady rate. A call that is late, and the one after it, do not end a
// rhythm; three irregular ones in a row do. Each context has its own: no two threads call in one.
class CallRhythm {
  public:
    // The time of the next call, in the clock of `now_ns`; 0: calls are irregular, or rare.
    uint64_t called(uint64_t now_ns) {
        const uint64_t interval = now_ns - last_ns_;
        last_ns_ = now_ns;
        const uint64_t difference = interval > period_ns_ ? interval - period_ns_ : period_ns_ - interval;
        if (difference <= period_ns_ / kTolerance) {
            trust_ = std::min(trust_ + 1, kMostTrust);
            period_ns_ = (3 * period_ns_ + interval) / 4;
        } else if (--trust_ <= 0) {
            trust_ = 0;
            period_ns_ = interval;
        }
        const bool trusted = trust_ >= kEnoughTrust && period_ns_ >= kShortestNs && period_ns_ <= kLongestNs;
        return trusted ? now_ns + period_ns_ : 0;
    }

  private:
    static constexpr uint64_t kShortestNs = 150'000, kLongestNs = 100'000'000;
    static constexpr uint64_t kTolerance = 5;
    static constexpr int kEnoughTrust = 2, kMostTrust = 4;

    uint64_t last_ns_ = 0, period_ns_ = 0;
    int trust_ = 0;
};

}  // namespace sk::model
