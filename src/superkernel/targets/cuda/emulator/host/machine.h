// machine.h: the emulated GPU of one launch: blocks of warps that share memory, and what is known of every access.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "../../../emulation/host/random.h"
#include "shared_state.h"

namespace ptx {

using emulation::Random;

constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = UINT32_MAX;
constexpr uint32_t kNone = UINT32_MAX;
constexpr int kBarriers = 16;
constexpr uint32_t kClusterBarrier = kBarriers;  // behind the barriers of a block
constexpr int kOperands = 18;

// Generic addresses: which space an address belongs to.
constexpr uint64_t kWindow = uint64_t(1) << 44;
constexpr uint64_t kGlobalWindow = 1 * kWindow, kSharedWindow = 2 * kWindow, kLocalWindow = 3 * kWindow,
                   kConstWindow = 4 * kWindow, kParamWindow = 5 * kWindow;

enum class Space : uint32_t { generic, global, shared, local, constant, param, cluster };  // cluster: shared memory of its blocks
enum class Semantics : uint32_t { weak, relaxed, acquire, release, acq_rel };  // volatile is relaxed at system scope
enum class Scope : uint32_t { cta, cluster, gpu, system };

// Addresses in shared memory of a block of the cluster, as mapa gives them: a bit that no other has, the rank, the offset.
constexpr uint32_t kMapped = uint32_t(1) << 31, kRankShift = 24, kMappedOffset = (uint32_t(1) << kRankShift) - 1;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&, uint32_t);
struct HandlerEntry {
    const char* name;
    Handler function;
};
std::vector<HandlerEntry> all_handlers();
void add_integer(std::vector<HandlerEntry>&);
void add_floating(std::vector<HandlerEntry>&);
void add_half(std::vector<HandlerEntry>&);
void add_conversions(std::vector<HandlerEntry>&);
void add_memory(std::vector<HandlerEntry>&);
void add_bulk(std::vector<HandlerEntry>&);
void add_warp(std::vector<HandlerEntry>&);
void add_matrix(std::vector<HandlerEntry>&);
void add_control(std::vector<HandlerEntry>&);

enum Flags : uint32_t { kLeader = 1, kGuardNegated = 2, kMeets = 4 };

struct Encoded {  // as in program.py
    uint32_t handler, line, flags, guard;
    uint64_t immediate;
    uint32_t detail;  // of memory instructions: see Detail
    uint32_t count;   // of operands
    uint32_t operands[kOperands];
};

struct Instruction {
    Handler function;
    uint64_t immediate;
    uint32_t line, flags, guard, detail, count;
    uint32_t operands[kOperands];
    mutable uint32_t hint = 0;   // the range that it touched last
};

// Bit fields of Encoded::detail for memory instructions; as in memory_forms.py.
struct Detail {
    explicit Detail(uint32_t bits)
        : space(Space(bits & 7)), semantics(Semantics(bits >> 3 & 7)), scope(bits >> 27 & 1 ? (bits >> 6 & 1 ? Scope::system : Scope::cluster) : bits >> 6 & 1 ? Scope::gpu : Scope::cta),
          size(1u << (bits >> 7 & 7)), sign(bits >> 10 & 1), wide_address(bits >> 11 & 1), non_coherent(bits >> 12 & 1),
          vector(bits >> 13 & 15), operation(bits >> 17 & 15), type(bits >> 21 & 15), no_result(bits >> 25 & 1),
          strong_volatile(bits >> 26 & 1) {}
    Space space;
    Semantics semantics;
    Scope scope;
    uint32_t size;  // bytes of an element
    bool sign, wide_address, non_coherent;
    uint32_t vector;     // elements
    uint32_t operation;  // of an atomic
    uint32_t type;
    bool no_result, strong_volatile;
};

struct Range {  // of global memory; addresses are emulated ones
    uint64_t begin = 0, end = 0;
    uint8_t* host = nullptr;
    std::string name;
    bool tracked = false;   // some op writes it: accesses are checked for races
    bool readable = true, writable = true;
    bool outside = false;   // the host may change it at any time
    bool late = false;      // debug-check: not to be read before griddepcontrol.wait
    uint32_t part = 0;      // debug-check: block i may touch bytes i * part to (i + 1) * part; 0: all
    bool shared = false;    // with other devices
    std::shared_ptr<Shadow> shadow = std::make_shared<Shadow>();
};

struct Copy {  // cp.async: bytes on their way to shared memory
    uint64_t from;
    uint32_t to, bytes, filled;  // `filled` bytes are read, the rest are zeros
    uint32_t instruction, lane;
    int group;  // kOpenGroup: not committed
};
constexpr int kOpenGroup = 1 << 30;

struct BulkCopy {  // bytes on their way to shared memory, until the mbarrier is asked
    const uint8_t* from;
    uint8_t *to, *mbarrier;
    uint32_t bytes;
    Warp* asked_by = nullptr;  // of a plain cp.async, whose end the warp can wait for; the mbarrier expects no bytes
    bool arrives = false;      // behind the copies of a lane: its arrival
};

struct Group {  // lanes that stand at the same instruction
    uint32_t pc, mask;
    bool parked;  // they wait for other lanes of the warp
};

enum class State { ready, waiting, done };

struct Block;
struct Machine;

struct Warp {
    Machine* machine = nullptr;
    Block* block = nullptr;
    uint32_t index = 0, number = 0;  // in the machine, in the block
    uint32_t actor = 0;              // its place in clocks
    std::vector<uint8_t> file;       // registers: 32 lanes of 4 or 8 bytes each; a predicate is one word
    uint32_t pc = 0, mask = 0;
    uint32_t lanes_begun = 0, live = 0;  // lanes that exist; those of them that have not ended
    std::vector<Group> others;
    State state = State::ready;
    bool yields = false;
    bool waited = false;  // it has executed griddepcontrol.wait
    uint32_t at = 0;  // the instruction under way
    uint32_t barrier = 0;  // that it waits at
    Clock clock, pending;  // the second half of a clock: what the asynchronous proxy sees; pending: read by relaxed loads
    Clock fence[4];        // by scope: the clock at the last fence
    bool at_cluster_barrier = false;  // it has arrived there, and not waited yet
    uint64_t cluster_phase = 0;       // that it has arrived for
    std::vector<Copy> copies;
    int group = 0;  // of cp.async, the next to be committed
    std::vector<uint8_t> local;
    uint64_t polls = 0, poll_progress = 0, polled = 0, poll_value = 0;
    const uint8_t* poll_host = nullptr;  // where the word is that it polls; null: not known
    uint32_t poll_bytes = 0;
    uint64_t priority = 0;
    uint64_t task = 0;      // whose op is known
    uint32_t task_op = 0;
    uint32_t carry = 0;

    template <class T>
    T* lanes(uint32_t offset) {
        return reinterpret_cast<T*>(file.data() + offset);
    }
    uint32_t& predicate(uint32_t offset) { return *reinterpret_cast<uint32_t*>(file.data() + offset); }
};

struct Barrier {
    uint32_t expected = 0, arrived = 0;  // threads
    std::vector<Warp*> waiting;
    Clock joined;
    uint32_t kind = 0;  // of bar.red: 0 none, 1 popc, 2 and, 3 or
    uint32_t count = 0, all = 1, any = 0;
    uint32_t line = 0;
};

struct Cluster {  // blocks that reach each other's shared memory, and their barrier
    uint64_t place = 0;               // among the clusters of all devices
    uint32_t live = 0, arrived = 0;   // warps that have not ended; those of them that have arrived
    uint64_t phase = 0;               // how often all have met
    Clock joined, met;                // of the warps that have arrived; of those that met last
    std::vector<Warp*> waiting;
    bool reached = false;             // a block has reached into another one's shared memory since they met last
    bool reached_late = false;        // the same by a warp that had arrived already
};

struct Block {
    Cluster* cluster = nullptr;
    uint32_t index = 0;  // of the place on the machine: the SM
    uint64_t place = 0;  // among the blocks of all devices
    uint32_t id[3] = {0, 0, 0};
    uint64_t linear = 0;
    std::vector<uint8_t> shared;
    Shadow shadow;
    Barrier barriers[kBarriers];
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<BulkCopy> bulk_copies;
    uint32_t running = 0;  // warps that have not ended
    bool busy = false;
};

struct Settings {  // as in library.py
    uint64_t seed;
    uint64_t stall_limit;   // steps of all warps together without progress
    uint64_t progress;      // the address of the words in which cores say what they do; 0: none
    uint32_t grid[3], threads[3];
    uint32_t resident;      // blocks at the same time
    uint32_t cores;         // that have progress words
    uint32_t task_register; // the place of the register that holds the address of a warp's task; kNone: blocks run alone
    uint32_t slot_threads;  // of one slot; 0: blocks have no slots
    uint32_t shared_bytes, dynamic_shared, local_bytes;
    uint32_t slots, slot_areas, slot_bytes;  // shared memory of slot s begins at slot_areas + s * slot_bytes; 0: not checked
    uint32_t order, quantum;
    uint32_t races;
    uint32_t late_copies;   // of 1024: cp.async completes when it must
    uint32_t apart;         // lanes that parted meet only where an instruction needs all of them
    uint32_t cluster;       // blocks of a cluster, which follow each other
    uint32_t ring_bytes;    // at the beginning of slot 0: for ops that take staged weights, and the warps behind the slots
};

struct Special {  // a register that is set when a block begins; as in registers.py
    uint32_t what, axis, offset;
};

std::string lanes_text(uint32_t mask);

struct Record {  // a core begins a task; task 0: it has ended its last
    uint64_t time;
    uint32_t core, task;
};

struct Label {  // of a few bytes of a range, such as one counter
    uint64_t begin, end;
    std::string text;
};

enum class Order : uint32_t { clock, random, priority, held };

struct Machine {
    Settings settings{};
    std::shared_ptr<SharedState> shared;
    uint32_t device = 0, first_actor = 0;  // its place among devices that run together; that of its first warp in clocks
    std::string rank;                      // of such a device; empty: it is the only one
    Clock known;                           // when it begins
    Random random;
    std::vector<Instruction> program;
    std::vector<uint32_t> targets;  // of brx.idx
    std::vector<uint8_t> image;  // of the registers of a warp when its block begins
    std::vector<Special> specials;
    std::vector<std::unique_ptr<Range>> ranges;  // by address
    std::vector<uint8_t> constant_bank, params;
    std::vector<Label> labels;
    std::vector<std::unique_ptr<Cluster>> clusters;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<Warp*> warps;
    std::map<std::pair<uint64_t, uint64_t>, uint32_t> op_of_task;  // SM, address of a task there -> 1 + op; 0: none
    std::vector<std::string> op_names;
    std::vector<bool> takes_staged;  // by number of the op
    std::vector<Record> records;
    std::string error;
    uint64_t next_block = 0, block_count = 0;
    uint64_t steps = 0, last_progress_step = 0, seen_progress = 0;
    uint64_t held_until = 0;
    uint32_t turn = 0;
    bool begun = false;
    std::vector<bool> held;
    std::vector<Warp*> ready, chosen_from;
    Warp* favourite = nullptr;
    bool ready_changed = true;

    // scheduler.cpp
    void begin();
    int run(uint64_t most_steps);  // 0: ended, 1: goes on, 2: failed, 3: waits for the host, 4: for other devices
    uint64_t places() const;          // blocks at the same time
    uint32_t warps_of_block() const;
    bool waits_for_host();
    void start_block(Block& block);
    Warp* choose();
    void find_ready();
    bool eager(const Warp& warp) const;
    void hold_some();
    bool in_vain(const Warp& warp) const;
    [[noreturn]] void deadlock(const std::string& why) const { throw Failure(standing(why)); }
    void end_warp(Warp& warp);

    // control.cpp
    void execute(Warp& warp, int64_t budget);
    void choose_group(Warp& warp);
    void gather_lanes(Warp& warp);  // at an instruction where lanes may meet
    void park(Warp& warp, uint32_t lanes);  // until other lanes come to the instruction under way
    bool together(Warp& warp, uint32_t lanes, uint32_t members);
    void meet_cluster(Cluster& cluster);  // if all of its warps have arrived

    // report.cpp
    [[noreturn]] void fail(Warp& warp, const std::string& why) const;
    std::string who(const Warp& warp) const;
    std::string standing(const std::string& why) const;  // and what each warp does or waits for
    const Warp& actor(uint32_t place) const;             // of any device
    std::string op(uint32_t number) const;
    std::string place(const Warp& warp, uint64_t address) const;  // a generic address in words
    uint32_t op_number(Warp& warp) const;

    // memory_place.cpp
    Range* range_of(uint64_t address, uint32_t bytes, uint32_t& hint);
    uint8_t* global_at(Warp& warp, const Instruction& instruction, uint64_t address, uint32_t bytes, bool write, Range*& range);

    // memory.cpp
    void note_progress_word(Warp& warp, uint64_t address, uint64_t bytes);

    // races.cpp
    void saw(Warp& warp, Shadow& shadow, uint64_t offset, uint64_t bytes, uint64_t address, AccessKind kind);
    void released(Warp& warp, uint64_t key, Semantics semantics, Scope scope, bool read_modify_write);
    void acquired(Warp& warp, uint64_t key, Semantics semantics, Scope scope);
    void fence(Warp& warp, Scope scope);
    void fence_proxy(Warp& warp);
};

// Lanes of a register hold values of up to 4 bytes in 4 bytes, zero-extended, and others in 8.
template <class T>
struct Lane {
    using Word = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;
    static T get(Word word) {
        if constexpr (sizeof(T) == sizeof(Word)) {
            T value;
            std::memcpy(&value, &word, sizeof value);
            return value;
        } else if constexpr (sizeof(T) == 2) {
            uint16_t low = uint16_t(word);
            T value;
            std::memcpy(&value, &low, sizeof value);
            return value;
        } else {
            uint8_t low = uint8_t(word);
            T value;
            std::memcpy(&value, &low, sizeof value);
            return value;
        }
    }
    static Word put(T value) {
        if constexpr (sizeof(T) == sizeof(Word)) {
            Word word;
            std::memcpy(&word, &value, sizeof word);
            return word;
        } else if constexpr (sizeof(T) == 2) {
            uint16_t low;
            std::memcpy(&low, &value, sizeof low);
            return low;
        } else {
            uint8_t low;
            std::memcpy(&low, &value, sizeof low);
            return low;
        }
    }
};

template <class F>
inline void each_lane(uint32_t mask, F visit) {
    if (mask == kAllLanes) {
#pragma GCC ivdep
        for (int lane = 0; lane < kLanes; ++lane) visit(lane);
        return;
    }
    for (; mask; mask &= mask - 1) visit(__builtin_ctz(mask));
}

// Handlers of instructions that compute one result per lane from as many registers as the function takes.
template <class D, class A, auto Function>
void unary(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<typename Lane<D>::Word>(i.operands[0]);
    auto* a = warp.lanes<typename Lane<A>::Word>(i.operands[1]);
    each_lane(mask, [=](int l) { d[l] = Lane<D>::put(Function(Lane<A>::get(a[l]))); });
}

template <class D, class A, class B, auto Function>
void binary(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<typename Lane<D>::Word>(i.operands[0]);
    auto* a = warp.lanes<typename Lane<A>::Word>(i.operands[1]);
    auto* b = warp.lanes<typename Lane<B>::Word>(i.operands[2]);
    each_lane(mask, [=](int l) { d[l] = Lane<D>::put(Function(Lane<A>::get(a[l]), Lane<B>::get(b[l]))); });
}

template <class D, class A, class B, class C, auto Function>
void ternary(Warp& warp, const Instruction& i, uint32_t mask) {
    auto* d = warp.lanes<typename Lane<D>::Word>(i.operands[0]);
    auto* a = warp.lanes<typename Lane<A>::Word>(i.operands[1]);
    auto* b = warp.lanes<typename Lane<B>::Word>(i.operands[2]);
    auto* c = warp.lanes<typename Lane<C>::Word>(i.operands[3]);
    each_lane(mask, [=](int l) {
        d[l] = Lane<D>::put(Function(Lane<A>::get(a[l]), Lane<B>::get(b[l]), Lane<C>::get(c[l])));
    });
}

}  // namespace ptx
