// state.h: the memory that the cores of one launch share.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

namespace sk {

constexpr int kLine = 64;
constexpr int kFailureBytes = 1024;
constexpr int kApart = 128;  // adjacent-line prefetch: words that two cores write are two cache lines apart

struct RankLine;  // window.h

// What a core is doing. Only the watchdog and crash reports read it.
enum class Doing : uint32_t { kNotStarted, kCalling, kWaiting, kFinished };

// Why a launch was stopped.
enum class Fault : uint32_t {
    kNone,
    kStalled,         // no core made progress: all were waiting in the super kernel
    kInterrupted,     // Ctrl-C
    kUnknownKey,      // the tiling key of a dynamic op has no variant
    kBlockCount,      // the block count of a dynamic op is out of range
    kUndeclaredSync,  // a sub-kernel called sync_all although the plan says that it does not
    kTilingFailed,    // the tiling function raised
    kFailed,          // a sub-kernel or a tiling function in C called fail()
    kNotWaited,       // a sub-kernel that is declared to wait inside returned without having waited
    kTilingStatus,    // a tiling function in C returned another number than 0
    kNoRoom,          // debug-check=1: no memory for copies of the buffers
    kNoMemory,        // the arena could not be allocated
    kRankFailed,      // a rank that was awaited has failed, or its process has ended
    kNullBuffer,      // a buffer that is not empty was passed without an address
};

// The last stamp that a core has signalled. One writer, many pollers: no false sharing. `sleepers` counts the cores
// that are blocked until the word changes, here as below.
struct alignas(kApart) Progress {
    std::atomic<uint32_t> stamp{0};
    std::atomic<uint32_t> sleepers{0};
};

// How many cores have signalled a mark. Many writers, many pollers.
struct alignas(kApart) MarkCounter {
    std::atomic<uint32_t> arrived{0};
    std::atomic<uint32_t> sleepers{0};
};

struct alignas(kApart) Activity {
    std::atomic<uint32_t> step{0};
    std::atomic<uint32_t> block{0};  // the blocks of one long op are progress too
    std::atomic<Doing> doing{Doing::kNotStarted};
    std::atomic<uint32_t> sleepers{0};
    std::atomic<const RankLine*> awaited{nullptr};  // the words of the rank that it waits for, if it does
    std::atomic<uint32_t> patience_ms{0};           // how long its own rank waits for others; 0: without a limit
};

// The barrier of one sync_all op. From `calls` the feeding cores know whether to join once more.
struct Rendezvous {
    alignas(kLine) std::atomic<uint32_t> arrived{0};
    alignas(kLine) std::atomic<uint32_t> generation{0};
    std::atomic<uint32_t> sleepers{0};
    alignas(kLine) std::atomic<uint32_t> calls{0};  // how often block 0 has called sync_all; kEnded: it has returned
    std::atomic<uint32_t> feeders_asleep{0};
};
constexpr uint32_t kEnded = 1u << 31;
constexpr uint32_t kRecordedMeetings = 64;  // calls of sync_all per op and core that leave time stamps

// The three words of a dynamic op.
struct alignas(kLine) Tiling {
    std::atomic<int64_t> key{0};
    std::atomic<int64_t> blocks{0};
    std::atomic<int64_t> lock{0};
    std::atomic<uint32_t> answered{0};  // as the lock, for cores that block
    std::atomic<uint32_t> sleepers{0};
};

struct TimeStamp {
    uint64_t ticks;
    uint32_t step;
    uint32_t unused;
};

struct CheckTables;

struct Launch {
    alignas(kLine) std::atomic<uint32_t> abort{0};
    std::atomic<Fault> fault{Fault::kNone};
    std::atomic<uint32_t> fault_step{0};
    std::atomic<int64_t> fault_detail{0};
    char failure[kFailureBytes] = {};  // the message of fail(); written by the core that set `fault`

    alignas(kLine) int cores = 0;
    const uint64_t* slots = nullptr;
    const int64_t* bytes = nullptr;  // per slot: the size of the memory behind it
    Progress* progress = nullptr;    // per core
    Activity* activity = nullptr;    // per core
    MarkCounter* counters = nullptr;
    char* copies = nullptr;          // private copies of the outputs of replicated ops
    Rendezvous* rendezvous = nullptr;
    Tiling* tilings = nullptr;
    TimeStamp* stamps = nullptr;     // cores * stamp_room
    uint32_t* stamp_count = nullptr; // per core
    uint32_t stamp_room = 0;
    uint64_t delay_seed = 0;         // used under SK_TEST_DELAYS only
    void (*request)(Launch*, int tiling) = nullptr;  // wakes the control agent
    const CheckTables* check = nullptr;              // used under SK_CHECK only
    void (*leave)() = nullptr;  // out of a sub-kernel of a stopped launch; never returns
    // a core that waits calls this: true when reached(condition) holds, false when the launch was stopped first
    bool (*wait)(Launch*, Activity*, uint32_t step, void* word, std::atomic<uint32_t>* sleepers, bool (*reached)(void*),
                 void* condition) = nullptr;
    // the same for the arrival of rank `other` in the round of rank `own`, another process; null where there are no ranks
    bool (*wait_rank)(Launch*, Activity*, uint32_t step, RankLine* lines, uint32_t own, uint32_t other) = nullptr;
    bool membarrier = false;  // the system has it: a blocked core is woken, otherwise it looks from time to time

    // As stop, with a message; the first core wins. Read when all cores have left.
    void fail(uint32_t step, const char* message) {
        Fault none = Fault::kNone;
        if (fault.compare_exchange_strong(none, Fault::kFailed)) {
            fault_step.store(step);
            std::strncpy(failure, message == nullptr ? "" : message, kFailureBytes - 1);
        }
        abort.store(1);
    }

    void stop(Fault why, uint32_t step, int64_t detail) {
        Fault none = Fault::kNone;
        if (fault.compare_exchange_strong(none, why)) {
            fault_step.store(step);
            fault_detail.store(detail);
        }
        abort.store(1);
    }
};

}  // namespace sk
