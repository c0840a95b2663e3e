// running_state.cpp: what a launch owns: made once, filled from its arguments, reset after it, kept for the next launch.
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>

#include "blocking.h"
#include "program.h"
#include "rank_wait.h"

namespace sk::host {

static const bool membarrier_registered =
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;

template <class T>
static T* make_array(size_t count) {
    return count == 0 ? nullptr : new T[count]();
}

Running* make_running(const Program& program) {
    const Facts& facts = program.facts;
    auto* running = new Running;
    running->program = &program;
    running->cores = facts.cores;
    running->progress = make_array<Progress>(facts.cores);
    running->activity = make_array<Activity>(facts.cores);
    running->rendezvous = make_array<Rendezvous>(facts.rendezvous_count);
    running->tilings = make_array<Tiling>(facts.tiling_count);
    running->counters = make_array<MarkCounter>(facts.counter_count);
    if (facts.copies_bytes > 0) running->copies = static_cast<char*>(aligned_alloc(kApart, facts.copies_bytes));
    running->stamp_count = make_array<uint32_t>(facts.cores);
    running->stamp_room = uint32_t(facts.stamp_room);
    running->stamps = make_array<TimeStamp>(size_t(facts.cores) * facts.stamp_room);
    running->slot_store.resize(facts.slot_count);
    running->byte_store.resize(facts.slot_count);
    running->slots = running->slot_store.data();
    running->bytes = running->byte_store.data();
    running->request = request_tiling;
    running->wait = wait_for;
    running->wait_rank = wait_for_rank;
    running->membarrier = membarrier_registered;
    running->delay_seed = facts.delay_seed;
    return running;
}

// An arena begins in the middle of a page: arrays of callers mostly begin at the beginning of one, and a load at the
// page offset of a recent store is taken for a load of what was stored.
constexpr size_t kPage = 4096, kHugePage = size_t(2) << 20;
constexpr size_t kArenaBegin = kPage / 2;

// False: there is no memory for it.
static bool make_arena(Running& running) {
    const size_t wanted = size_t(running.program->facts.arena_bytes) + kArenaBegin;
    const size_t alignment = wanted >= kHugePage ? kHugePage : kPage;
    const size_t room = (wanted + alignment - 1) / alignment * alignment;
    // mapped, not allocated: what is freed goes back to the system
    void* const mapped = mmap(nullptr, room + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    running.arena_store = mapped;
    running.arena_mapped = room + alignment;
    const uint64_t first = (reinterpret_cast<uint64_t>(mapped) + alignment - 1) / alignment * alignment;
    if (alignment == kHugePage) madvise(reinterpret_cast<void*>(first), room, MADV_HUGEPAGE);
    running.arena = reinterpret_cast<char*>(first) + kArenaBegin;
    return true;
}

void free_arena(Running& running) {
    if (running.arena_store != nullptr) munmap(running.arena_store, running.arena_mapped);
    running.arena_store = nullptr;
    running.arena = nullptr;
}

void free_running(Running* running) {
    free_arena(*running);
    delete[] running->progress;
    delete[] running->activity;
    delete[] running->rendezvous;
    delete[] running->tilings;
    delete[] running->counters;
    free(running->copies);
    delete[] running->stamp_count;
    delete[] running->stamps;
    if (running->checked != nullptr) release(*running->checked);
    delete running;
}

// Resets everything: a launch never sees the state of an earlier one.
void reset(Running& running) {
    const Facts& facts = running.program->facts;
    running.abort.store(0);
    running.fault.store(Fault::kNone);
    running.failure[0] = '\0';
    running.reported.store(false);
    running.formation.store(0);
    running.delay_seed += 1;
    for (int core = 0; core < facts.cores; ++core) {
        running.progress[core].stamp.store(0, std::memory_order_relaxed);
        running.activity[core].step.store(0, std::memory_order_relaxed);
        running.activity[core].doing.store(Doing::kNotStarted, std::memory_order_relaxed);
        running.activity[core].awaited.store(nullptr, std::memory_order_relaxed);
        running.stamp_count[core] = 0;
    }
    for (int i = 0; i < facts.counter_count; ++i) running.counters[i].arrived.store(0, std::memory_order_relaxed);
    for (int i = 0; i < facts.rendezvous_count; ++i) {
        Rendezvous& rendezvous = running.rendezvous[i];
        rendezvous.arrived.store(0);
        rendezvous.generation.store(0);
        rendezvous.calls.store(0);
    }
    for (int i = 0; i < facts.tiling_count; ++i) {
        Tiling& tiling = running.tilings[i];
        tiling.key.store(0);
        tiling.blocks.store(0);
        tiling.lock.store(0);
        tiling.answered.store(0);
    }
}

static uint64_t tiling_word(Running& running, int32_t source) {
    const int32_t word = kFirstTiling - source;
    Tiling& tiling = running.tilings[word / 3];
    std::atomic<int64_t>* const words[] = {&tiling.key, &tiling.blocks, &tiling.lock};
    return reinterpret_cast<uint64_t>(words[word % 3]);
}

// False: the launch is stopped, because there is no memory for the arena, or a buffer has bytes but no address.
bool fill_slots(Running& running, const uint64_t* values, const int64_t* bytes) {
    const Program& program = *running.program;
    for (int32_t i = 0; i < program.facts.slot_count; ++i) {
        const int32_t source = program.slot_source[i];
        const uint64_t literal = program.slot_literal[i];
        if (source < 0) {
            running.slot_store[i] = source == kLiteral ? literal : tiling_word(running, source);
            running.byte_store[i] = 0;
            continue;
        }
        uint64_t value = values[source];
        int64_t size = bytes[source];
        if (size == kInArena) {
            if (running.arena == nullptr && !make_arena(running)) {
                running.stop(Fault::kNoMemory, 0, 0);
                return false;
            }
            value = reinterpret_cast<uint64_t>(running.arena + program.source_offset[source]);
            size = program.source_bytes[source];
        } else if (value == 0 && size > 0) {
            running.stop(Fault::kNullBuffer, 0, source);
            return false;
        }
        running.slot_store[i] = value + literal;
        running.byte_store[i] = std::max<int64_t>(0, size - int64_t(literal));
    }
    return true;
}

}  // namespace sk::host
