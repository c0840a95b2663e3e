// core.h: one core of a running super kernel: its position, and the steps of the plan as member functions.
#pragma once

#ifdef SK_TEST_DELAYS
#include <sched.h>
#endif

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "tiling.h"
#ifdef SK_CHECK
#include "check.h"
#endif
#include "wait.h"
#include "window.h"

namespace sk {

constexpr int kPendingWaits = 8;
constexpr int kNoCounter = -1;
constexpr int kEagerPolls = 64;
constexpr size_t kPreloadBytes = 4096;  // the hardware prefetcher keeps up beyond this

struct Choice {
    bool ok;
    int64_t key;
    int blocks;
};

class Core {
  public:
    Core(Launch& launch, int id) : launch_(launch), id_(id), activity_(launch.activity[id]) {
#ifdef SK_CHECK
        checker.start(launch);
#endif
#ifdef SK_TEST_DELAYS
        random_ = launch.delay_seed * 0x9E3779B97F4A7C15u + uint64_t(id) + 1;
#endif
    }

    int id() const { return id_; }
    int block() const { return block_; }
    int blocks() const { return blocks_; }
    bool in(int first, int last) const { return first <= id_ && id_ < last; }
    bool alive() const { return launch_.abort.load(std::memory_order_relaxed) == 0; }

    // call: records which block of which op runs next
    void begin(uint32_t step, int block, int blocks, bool last_block = true) {
        delay();
        if (left_waits()) {
            complete_waits();
            leave();
        }
        block_ = block;
        blocks_ = blocks;
        last_block_ = last_block;
        step_ = step;
        activity_.step.store(step, std::memory_order_relaxed);
        activity_.block.store(uint32_t(block), std::memory_order_relaxed);
        activity_.doing.store(Doing::kCalling, std::memory_order_relaxed);
#ifdef SK_CHECK
        checker.begin(step, block, blocks);
#endif
    }

    // signal: publishes (release) everything this core did so far under `stamp`
    void signal(uint32_t stamp) {
        delay();
        if (published_ < stamp) publish(stamp);
    }
    // signal to many cores: the stamp, and one more arrival at the counter that they poll (release)
    void signal(uint32_t stamp, int counter) {
        delay();
        if (published_ >= stamp) return;
        publish(stamp);
        MarkCounter& arrivals = launch_.counters[counter];
        arrivals.arrived.fetch_add(1, std::memory_order_release);
        wake_sleepers(arrivals.arrived, arrivals.sleepers);
    }
    // the next call may signal itself, with set_next()
    void signal_early(uint32_t stamp, int counter = kNoCounter) {
        early_stamp_ = stamp;
        early_counter_ = counter;
    }

    // wait: until all other cores in [first, last) have signalled `stamp` (acquire); spins, then blocks
    bool wait(uint32_t step, uint32_t stamp, int first, int last) {
        delay();
        for (int other = first; other < last; ++other) {
            if (other == id_) continue;
            Progress& progress = launch_.progress[other];
            const auto reached = [&progress, stamp] { return progress.stamp.load(std::memory_order_acquire) >= stamp; };
            if (reached_soon(reached)) continue;
            const FutexWord word(progress.stamp, progress.sleepers);
            if (!wait_slowly(launch_, activity_, step, word, reached)) return false;
        }
        return true;
    }
    // the same, deferred until the next call reaches wait_previous()
    bool wait_inside(uint32_t step, uint32_t stamp, int first, int last) {
        if (pending_ == kPendingWaits) return recorded(step, [&] { return wait(step, stamp, first, last); });
        waits_[pending_++] = {step, stamp, first, last, kNoCounter};
        return true;
    }
    // wait: until all `count` cores that raise a counter have done so
    bool wait_all(uint32_t step, int counter, uint32_t count) {
        delay();
        MarkCounter& arrivals = launch_.counters[counter];
        const auto reached = [&] { return arrivals.arrived.load(std::memory_order_acquire) >= count; };
        const FutexWord word(arrivals.arrived, arrivals.sleepers);
        return reached_soon(reached) || wait_slowly(launch_, activity_, step, word, reached);
    }
    bool wait_inside_all(uint32_t step, int counter, uint32_t count) {
        if (pending_ == kPendingWaits) return recorded(step, [&] { return wait_all(step, counter, count); });
        waits_[pending_++] = {step, count, 0, 0, counter};
        return true;
    }
    bool finish_waits() {
        return pending_ == 0 || recorded(waits_[0].step, [&] { return wait_for_all_pending(); });
    }

    bool barrier(uint32_t step, uint32_t stamp, int first, int last) {
        signal(stamp);
        return wait(step, stamp, first, last);
    }

    Rendezvous& rendezvous(int index) const { return launch_.rendezvous[index]; }

    // sync_all: the op's blocks and the feeding cores meet
    void meet_in(Rendezvous& rendezvous, int members, bool fed) {
        rendezvous_ = &rendezvous;
        members_ = members;
        fed_ = fed;
        meetings_ = 0;
    }
    void meeting_over(int rank) {
        if (rank == 0 && fed_) {
            rendezvous_->calls.fetch_or(kEnded, std::memory_order_release);
            wake_sleepers(rendezvous_->calls, rendezvous_->feeders_asleep);
        }
        rendezvous_ = nullptr;
    }
    void sync_all() {
        if (rendezvous_ == nullptr) {
            if (blocks_ <= 1) return;
            launch_.stop(Fault::kUndeclaredSync, step_, 0);
            leave();
        }
        if (block_ == 0 && fed_) {
            rendezvous_->calls.fetch_add(1, std::memory_order_release);
            wake_sleepers(rendezvous_->calls, rendezvous_->feeders_asleep);
        }
        const auto meet = [&] { return arrive(*rendezvous_, members_, step_); };
        const bool met = meetings_ < kRecordedMeetings ? recorded(step_, meet) : meet();
        ++meetings_;
        if (!met) leave();
    }
    bool feed(uint32_t step, Rendezvous& rendezvous, int members) {
        uint32_t joined = 0;
        const auto called = [&] { return (rendezvous.calls.load(std::memory_order_acquire) & ~kEnded) > joined; };
        const auto ended = [&] { return (rendezvous.calls.load(std::memory_order_acquire) & kEnded) != 0; };
        const FutexWord word(rendezvous.calls, rendezvous.feeders_asleep);
        for (;;) {
            if (!wait_slowly(launch_, activity_, step, word, [&] { return ended() || called(); })) return false;
            if (!called()) return true;
            if (!arrive(rendezvous, members, step)) return false;
            ++joined;
        }
    }

    // events: words shared with threads outside of the launch
    bool await_event(uint32_t step, uint64_t slot) {
        delay();
        const auto* word = reinterpret_cast<std::atomic<int64_t>*>(slot);
        return wait_slowly(launch_, activity_, step, FutexWord(), [word] { return word->load(std::memory_order_acquire) == 1; });
    }
    void notify(uint64_t slot) { reinterpret_cast<std::atomic<int64_t>*>(slot)->store(1, std::memory_order_release); }
    void reset_event(uint64_t slot) { reinterpret_cast<std::atomic<int64_t>*>(slot)->store(0, std::memory_order_release); }

    // ranks: the words of a window, which the processes of a group share
    void notify_ranks(uint64_t slot, uint32_t rank) {
        delay();
        publish_arrival(rank_lines(reinterpret_cast<void*>(slot))[rank]);
    }
    // until all ranks have arrived in the round of this one (acquire); false: the launch was stopped
    bool await_ranks(uint32_t step, uint64_t slot, uint32_t rank, uint32_t ranks) {
        delay();
        RankLine* const lines = rank_lines(reinterpret_cast<void*>(slot));
        for (uint32_t other = 0; other < ranks; ++other) {
            const auto arrived = [&] { return has_arrived(lines[other].arrived.load(std::memory_order_acquire), lines[rank].round); };
            if (!reached_soon(arrived) && !launch_.wait_rank(&launch_, &activity_, step, lines, rank, other)) return false;
        }
        return true;
    }

    // dynamic ops: request a tiling, later read it
    void request(int tiling) {
#ifdef SK_CHECK
        launch_.check->publish(&launch_);
#endif
        launch_.request(&launch_, tiling);
    }
    // the same, computed here by a C function; false: the launch was stopped
    bool compute_tiling(uint32_t step, int tiling, int (*function)(const sk_tiling_args*, sk_tiling_result*),
                        const sk_tiling_args& in) {
        begin(step, 0, 1);
        const int deferred = std::exchange(pending_, 0);  // the waits of a later call are not the function's to make
        sk_tiling_result out{0, -1};
        const int status = function(&in, &out);
        pending_ = deferred;
        if (status != 0) launch_.stop(Fault::kTilingStatus, step, status);
        if (!alive()) return false;
        answer_tiling(launch_.tilings[tiling], out.key, out.blocks);
        return true;
    }
    Choice select(uint32_t step, int tiling, const int64_t* keys, int key_count, int most_blocks) {
        delay();
        Tiling& words = launch_.tilings[tiling];
        const auto answered = [&] { return words.answered.load(std::memory_order_acquire) != 0; };
        const FutexWord word(words.answered, words.sleepers);
        if (!reached_soon(answered) && !wait_slowly(launch_, activity_, step, word, answered)) return {false, 0, 0};
        const int64_t key = words.key.load(std::memory_order_relaxed);
        const int64_t blocks = words.blocks.load(std::memory_order_relaxed);
        if (std::find(keys, keys + key_count, key) == keys + key_count) {
            launch_.stop(Fault::kUnknownKey, step, key);
            return {false, 0, 0};
        }
        if (blocks < 0 || blocks > most_blocks) {
            launch_.stop(Fault::kBlockCount, step, blocks);
            return {false, 0, 0};
        }
        return {true, key, int(blocks)};
    }

    // preload and prefetch
    void preload(const void* code, size_t bytes) const {
        const char* first = static_cast<const char*>(code);
        for (size_t at = 0; at < std::min(bytes, kPreloadBytes); at += kLine) __builtin_prefetch(first + at, 0, 2);
    }
    void prefetch(uint64_t slot, int64_t bytes, int rank, int width, int64_t budget) const {
        const int64_t share = bytes / width;
        const char* first = reinterpret_cast<const char*>(slot) + share * rank;
        for (int64_t at = 0; at < std::min(share, budget); at += kLine) __builtin_prefetch(first + at, 0, 2);
    }

    // the address of a replicated buffer: copy 0 is the buffer itself, the others belong to the launch
    uint64_t copy(uint64_t slot, int index, uint64_t offset, uint64_t stride) const {
        if (index == 0) return slot;
        const uint64_t address = reinterpret_cast<uint64_t>(launch_.copies) + offset + uint64_t(index - 1) * stride;
#ifdef SK_CHECK
        checker.moved(slot, address);
#endif
        return address;
    }

    void fence() const { std::atomic_thread_fence(std::memory_order_seq_cst); }

    // profiling=1: the first record of a core, the begin of its kernel, switches the records of waits inside calls on
    void record(uint32_t step) {
        recording_ = true;
        write_stamp(ticks(), step);
    }

    // what kernel.h offers to a sub-kernel
    void wait_previous() {
        if (pending_ != 0 && !finish_waits()) leave();
#ifdef SK_CHECK
        checker.wait();
#endif
    }
    void set_next() {
#ifdef SK_CHECK
        checker.signal();
#endif
        if (left_waits() && !complete_waits()) leave();
        if (early_stamp_ == 0 || !last_block_) return;
        if (early_counter_ == kNoCounter) {
            signal(early_stamp_);
        } else {
            signal(early_stamp_, early_counter_);
        }
    }
    void fail(const char* message) { launch_.fail(step_, message); }
    // after the call: the waits that the sub-kernel did not reach
    bool end_call() {
        early_stamp_ = 0;
        const bool met = left_waits() ? complete_waits() : finish_waits();
        return met && alive();
    }

  private:
    struct PendingWait {
        uint32_t step;
        uint32_t stamp;  // or the arrivals that are waited for, at a counter
        int first, last;
        int counter;
    };

    bool wait_for_all_pending() {
        bool met = true;
        for (int i = 0; i < pending_ && met; ++i) {
            const PendingWait& due = waits_[i];
            met = due.counter == kNoCounter ? wait(due.step, due.stamp, due.first, due.last)
                                            : wait_all(due.step, due.counter, uint32_t(due.stamp));
        }
        pending_ = 0;
        return met;
    }

    void write_stamp(uint64_t when, uint32_t step) {
        uint32_t& count = launch_.stamp_count[id_];
        if (count < launch_.stamp_room) launch_.stamps[size_t(id_) * launch_.stamp_room + count++] = {when, step, 0};
    }

    // A wait inside a call. With profiling=1 its begin and its end are two stamps of `step`, which is no record step.
    template <class Waiting>
    bool recorded(uint32_t step, Waiting waiting) {
        if (!recording_) return waiting();
        const uint64_t begin = ticks();
        const bool met = waiting();
        write_stamp(begin, step);
        write_stamp(ticks(), step);
        return met;
    }

    // Whether a block of the op was called and went on without its waits. Steps rise: its call comes after its waits.
    bool left_waits() const { return pending_ != 0 && step_ > waits_[0].step; }
    // A sub-kernel broke its promise to wait inside. What it read may be old: the launch fails, after the waits.
    bool complete_waits() {
        const bool met = finish_waits();
        if (met) launch_.stop(Fault::kNotWaited, step_, block_);
        return met && alive();
    }

    // A pause takes longer than the transfer of a cache line between cores: poll a few times without one.
    template <class Reached>
    static bool reached_soon(Reached reached) {
        for (int i = 0; i < kEagerPolls; ++i) {
            if (reached()) return true;
        }
        return false;
    }

    void publish(uint32_t stamp) {
        published_ = stamp;
        Progress& progress = launch_.progress[id_];
        progress.stamp.store(stamp, std::memory_order_release);
        wake_sleepers(progress.stamp, progress.sleepers);
    }

    // A sub-kernel whose wait was aborted must not continue: its inputs were never written.
    [[noreturn]] void leave() {
        launch_.leave();
        __builtin_unreachable();
    }

    bool arrive(Rendezvous& at, int members, uint32_t step) {
        delay();
        const uint32_t generation = at.generation.load(std::memory_order_acquire);
        if (at.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(members)) {
            at.arrived.store(0, std::memory_order_relaxed);
            at.generation.store(generation + 1, std::memory_order_release);
            wake_sleepers(at.generation, at.sleepers);
            return true;
        }
        return wait_slowly(launch_, activity_, step, FutexWord(at.generation, at.sleepers),
                           [&] { return at.generation.load(std::memory_order_acquire) != generation; });
    }

    // Under SK_TEST_DELAYS every step is delayed by a random time from a seed.
    void delay() {
#ifdef SK_TEST_DELAYS
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        if (random_ % 16 == 0) sched_yield();
        for (uint64_t i = random_ % 7 == 0 ? random_ % 4096 : random_ % 64; i > 0; --i) relax();
#endif
    }

    Launch& launch_;
    const int id_;
    Activity& activity_;
    int block_ = 0;
    int blocks_ = 1;
    bool last_block_ = true;
    bool recording_ = false;
    uint32_t step_ = 0;
    uint32_t published_ = 0;
    uint32_t early_stamp_ = 0;
    int early_counter_ = kNoCounter;
    int pending_ = 0;
    PendingWait waits_[kPendingWaits];
    Rendezvous* rendezvous_ = nullptr;
    int members_ = 0;
    uint32_t meetings_ = 0;
    bool fed_ = false;
#ifdef SK_TEST_DELAYS
    uint64_t random_;
#endif
};

// The position of core `id` in `cores`.
inline int rank(int id, std::initializer_list<int> cores) {
    return int(std::find(cores.begin(), cores.end(), id) - cores.begin());
}

// A scalar argument as its own type.
template <class T>
T as(uint64_t slot) {
    T value;
    std::memcpy(&value, &slot, sizeof(T));
    return value;
}

}  // namespace sk
