// team.h: the threads of a model: a call runs on the calling thread and on as many of these as its plan has cores.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "awake_processor.h"
#include "superkernel/model.h"
#include "superkernel/state.h"

namespace sk::model {

uint32_t fork_generation();  // how many forks lie between the process that loaded the library and this one

class Team {
  public:
    // The deleter of an owner: a team is ended, not deleted at once.
    struct Ending {
        void operator()(Team* team) const noexcept { end(team); }
    };
    using Owner = std::unique_ptr<Team, Ending>;
    using Work = void (*)(void* data, int core);

    // `awake`: for the processor of callers; null: it may idle. A team without workers may have that alone.
    Team(int workers, sk_wait wait, std::vector<int> processors, std::unique_ptr<AwakeProcessor> awake);
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return workers_ + 1; }
    sk_wait wait_policy() const { return wait_; }
    bool is_here() const { return generation_ == fork_generation(); }  // false: its threads are in the parent of a fork
    bool asleep() const { return sleepers_.load(std::memory_order_relaxed) != 0; }

    // SK_WAIT_BALANCED: a call is expected then, and threads that sleep wake up shortly before. 0: none is.
    void expect_call(uint64_t at_ns) { expected_ns_.store(at_ns, std::memory_order_relaxed); }
    // For a call that does not use the threads: wakes those that sleep without an expected call, so that they see it.
    void tell_expected();

    // Calls work(data, core) on `cores` threads, core 0 on this one, and returns when all have returned. False: nothing was
    // run, because other calls have the threads, or they did not arrive within `patience_ns` (0: wait as long as it takes).
    bool run(int cores, Work work, void* data, uint64_t patience_ns);

    // While it lives, the calling thread is in a call; null: of a model without threads.
    class Caller {
      public:
        explicit Caller(Team* team) : awake_(team == nullptr ? nullptr : team->awake_.get()) {
            if (awake_ != nullptr) team->call_begins();
        }
        ~Caller() {
            if (awake_ != nullptr) awake_->call_ends();
        }
        Caller(const Caller&) = delete;

      private:
        AwakeProcessor* const awake_;
    };

    // Around a fork; in the child the threads do not exist.
    static void before_fork();
    static void after_fork(bool child);
    // When the library is unloaded: returns when all threads of all teams have ended.
    static void end_all() noexcept;

  private:
    struct Worker {
        Team* team;
        int core;
        pthread_t thread;
    };

    ~Team() = default;
    static void end(Team* team) noexcept;
    static void delete_ended() noexcept;
    void enlist() noexcept;
    void delist() noexcept;
    bool start(bool again);
    void call_begins();
    void start_awake(int processor);
    void tell_end() noexcept;
    bool join(uint64_t limit_ns) noexcept;
    static void* thread_main(void* worker);
    static void* awake_main(void* team);
    void serve(int core);
    uint32_t await_call(uint32_t seen, uint64_t& early_ns);
    void await_balanced(uint32_t seen, uint64_t& early_ns);
    void sleep(uint32_t seen, uint64_t until_ns);
    void keep_off(int processor);
    bool join_call(uint32_t number, int core);
    bool take_threads(std::unique_lock<std::mutex>& hold, uint64_t patience_ns);
    bool gather(int cores, Work work, void* data, uint64_t patience_ns);
    void await_end(int cores);

    const int workers_;
    const sk_wait wait_;
    const std::vector<int> processors_;
    std::unique_ptr<AwakeProcessor> awake_;
    std::mutex mutex_;  // held by the call that has the threads
    std::vector<Worker> threads_;
    bool started_ = false;
    std::atomic<bool> awake_tried_{false};
    pthread_t awake_thread_{};
    bool has_awake_thread_ = false;
    bool abandoned_ = false;  // its owner is gone; it is deleted when its threads have ended
    Team* next_ = nullptr;    // of the teams that have threads
    bool enlisted_ = false;
    const uint32_t generation_;  // of the process, counted by forks
    int kept_off_ = -1;          // the processor that no thread may use: a caller's
    Work work_ = nullptr;
    void* data_ = nullptr;

    alignas(kApart) std::atomic<uint32_t> call_{0};  // the number of the last call; threads sleep on it
    std::atomic<uint32_t> sleepers_{0};
    std::atomic<uint32_t> unaware_{0};  // of the sleepers: those that expect no call
    std::atomic<uint64_t> expected_ns_{0};
    std::atomic<bool> ending_{false};
    // the number of a call, its cores, the number of threads that have joined, and whether it is closed for others
    alignas(kApart) std::atomic<uint64_t> formation_{0};
    alignas(kApart) std::atomic<uint32_t> done_{0};  // threads that have finished their part; the caller sleeps on it
    std::atomic<uint32_t> caller_asleep_{0};
};

}  // namespace sk::model
