// blocking.h: how a core waits: it spins briefly, then blocks on a futex, so that its processor is free for the core that
// it waits for; the abort word ends every wait.
#pragma once

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/prctl.h>

#include "superkernel/wait.h"

namespace sk::host {

constexpr int kSpins = 3000;            // some tens of microseconds
constexpr int kCrowdedSpins = 200;      // another thread needs the processor
constexpr uint64_t kYieldNs = 200'000;  // then yield this long, on a machine with idle processors
constexpr uint64_t kLongBlockNs = 500'000;  // a core that was blocked this long asks whether the machine is crowded
constexpr long kWakeNs = 10'000'000;    // a blocked core looks at the abort word this often
constexpr long kSleepNs = 20'000;       // sleep between two looks at a word whose writer wakes no core
constexpr unsigned long kSlackNs = 1'000;  // timer slack of these sleeps; the default of 50 us would be visible

// Lowers the timer slack of this thread during its lifetime, so that short sleeps end in time.
class LowTimerSlack {
  public:
    LowTimerSlack() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, kSlackNs); }
    ~LowTimerSlack() {
        if (before_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_));
    }

  private:
    const int before_;
};

template <class Over>
void block_until(const Launch& launch, const FutexWord& word, Over over) {
    word.sleepers->fetch_add(1);
    if (launch.membarrier) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    const LowTimerSlack while_blocked;
    for (;;) {
        const uint32_t seen = static_cast<std::atomic<uint32_t>*>(word.address)->load(std::memory_order_acquire);
        if (over()) break;
        const timespec limit{0, launch.membarrier ? kWakeNs : kSleepNs};
        syscall(SYS_futex, word.address, FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
    }
    word.sleepers->fetch_sub(1);
}

// Launch::wait
bool wait_for(Launch* launch, Activity* activity, uint32_t step, void* word, std::atomic<uint32_t>* sleepers,
              bool (*reached)(void*), void* condition);

}  // namespace sk::host
