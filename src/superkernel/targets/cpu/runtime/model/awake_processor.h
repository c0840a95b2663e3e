// awake_processor.h: a thread of the lowest priority that keeps the processor of a caller busy between calls.
//
// A processor that idles for a millisecond loses its caches: to a sleep state, or to another virtual machine. The thread
// gives way to any other thread at once, and keeps the memory of calls in the processor's caches.
#pragma once

#include <stdint.h>

#include <atomic>
#include <vector>

#include "huge_pages.h"
#include "superkernel/state.h"

namespace sk::model {

class AwakeProcessor {
  public:
    // `memory`: what calls read; it is kept in the caches if it is small.
    explicit AwakeProcessor(std::vector<MemoryRange> memory);

    // What the thread does until `end`; it returns at once where the system has no such priority.
    void run();
    void end() { ending_.store(true); }

    static constexpr int kNone = -1;

    // The thread follows to the processor of a call within some milliseconds; kNone: it sleeps.
    void call_begins(int processor) {
        in_call_.store(true, std::memory_order_relaxed);
        if (processor != processor_.load(std::memory_order_relaxed)) processor_.store(processor, std::memory_order_relaxed);
    }
    void call_ends() { in_call_.store(false, std::memory_order_relaxed); }

  private:
    bool follow(int processor) const;
    void give_way() const;
    void touch_memory() const;

    const std::vector<MemoryRange> memory_;
    alignas(kApart) std::atomic<int> processor_{kNone};
    std::atomic<bool> in_call_{false};  // where threads call at the same time, it is what the last of them has said
    std::atomic<bool> ending_{false};
};

}  // namespace sk::model
