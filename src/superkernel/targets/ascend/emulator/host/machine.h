// machine.h: the emulated chip of one launch: cores with their flags and caches, memory, and what was recorded.
#pragma once
#include <setjmp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "../include/superkernel/emulator.h"
#include "../../../emulation/host/random.h"
#include "clocks.h"
#include "shared_state.h"
#include "stand_ins.h"

namespace emulator {

using emulation::Random;

constexpr int kFlags = 16;
constexpr uint64_t kLine = 64;           // bytes of memory that are watched together; cache lines are multiples
constexpr uint64_t kLargestLine = 512;   // bytes of the largest cache line of a chip
constexpr uint64_t kWordSize = 8;
constexpr int kOutPipe = 5, kAllPipes = 6, kFixPipe = 10;  // PIPE_MTE3, PIPE_ALL, PIPE_FIX of kernel_operator.h
constexpr uint32_t kNone = UINT32_MAX;
constexpr int64_t kUnknown = -1;         // blocks of a dynamic op whose tiling is not known yet

struct Stop {};  // thrown through the stack of a core when the launch is stopped

enum class Class : uint32_t { cube, vector };

enum class Type : int32_t { vector_only, cube_only, mix_vector, mix_cube, mix_1_1, mix_1_2 };
inline bool on_cubes(Type type) { return type != Type::vector_only && type != Type::mix_vector; }
inline bool on_vectors(Type type) { return type != Type::cube_only && type != Type::mix_cube; }

// What the scheduler does with cores that could go on; as in launch.py.
enum class Order : int32_t { clock, random, priority, held };

enum class What : uint32_t {  // as in trace.py
    kernel_begin, kernel_end, op_begin, op_waited, op_set, op_end,
    wait_begin, wait_end, signal, preload, clean, sync_all, store, agent, poll_begin, poll_end, drain, word_seen
};

struct Record {
    uint64_t sequence;  // the order in which it happened
    uint64_t time;      // the core's clock, in ticks
    uint32_t core;
    uint32_t what;
    uint32_t op;
    uint32_t detail;    // block, flag, copy, function, ...
    uint64_t value;
};

struct Need {  // an op that another one needs
    uint32_t producer;
    bool block_local;  // block i needs block i only
    bool before_wait;  // it is touched before the wait point of the consumer
};

struct Op {
    std::string name;
    std::string functions;  // "\nadd\nadd_split1\n"; of a dynamic op: those of the chosen tiling key
    uint64_t first_slot = 0;  // its index in the parameter block
    Type type = Type::vector_only;
    int64_t blocks = 0;     // kUnknown: its tiling is not known yet
    int64_t stream = 0;
    int64_t copies = 1;
    bool dynamic = false;
    bool preloaded = false;  // its code is asked for before each call
    std::vector<Need> needs;
    std::vector<uint64_t> events;  // words that must have been seen set before it begins
    std::vector<uint32_t> stored;  // per core: how far its clock was when it had stored; 0: it has not
};

enum class Turn { went_on, over, blocked };

enum class WordKind : int32_t { notify, wait, lock, go, tell };  // as in expectations.py

struct Seen {
    uint32_t actor, at;
};

struct Stores {  // to a control word
    Seen first, last;
};

struct Word {  // a word that cores and agents outside talk through
    std::string name;
    WordKind kind = WordKind::notify;
    std::vector<uint32_t> ops;  // notify: those that must have stored; wait: those that must not have begun; else its op
    uint32_t stores = 0;        // of its signal, or of its request
    uint32_t resets = 0;
    uint32_t core = kNone;      // the one that touches it
    std::vector<Seen> seen;     // who has seen it set
};

struct Region {
    uint64_t begin = 0, end = 0;
    std::string name;
    bool words = false;  // cores talk through these: a load that sees a store is ordered after it
};

struct CachedLine {
    uint8_t bytes[kLargestLine];
    bool dirty = false;
    bool speculative = false;
    uint64_t stored = 0;   // a bit per word of 8 bytes that this core has stored to
    uint64_t version = 0;  // of memory when it was read
};

struct Queued {  // in a pipe: a copy to memory that is on its way, or a signal behind such copies
    int pipe;
    Clock clock;  // what the core knew when it issued it
    uint64_t time;
    uint64_t address;  // of a copy
    uint32_t op;
    std::vector<uint8_t> bytes;
    int mode = 0;  // of a signal
    int64_t flag = -1;

    bool is_signal() const { return flag >= 0; }
};

enum class State { ready, waiting, done };

struct Core {
    uint32_t index = 0;  // on its chip
    uint32_t actor = 0;  // its place in clocks
    Class kind = Class::cube;
    int64_t block = 0, sub_block = 0, core_id = 0;

    State state = State::ready;
    int64_t waits_for = -1;
    int line = 0;  // where it is in the emitted source
    bool has_ffts_base = false, has_type = false;
    uint64_t time = 0;
    Clock clock;
    std::deque<std::pair<uint64_t, Clock>> flags[kFlags];  // set and not yet waited for: when, and after what

    std::unordered_map<uint64_t, CachedLine> cache;
    std::vector<uint64_t> cached;  // the keys of `cache`, to choose one at random
    std::deque<Queued> queue;
    bool undrained = false;             // copies were issued since the last drain, landed or not
    std::vector<uint32_t> unsettled;    // ops whose copies no drain and no signal in their pipe has ordered
    bool drained = true;  // no op of it has run since its pipes were drained

    // the call under way, and what the entry said of it
    uint32_t op = kNone, last_op = kNone;
    const char* function = "";  // that the call names
    uint32_t context_blocks = 0;
    int32_t wait_pair = -1;
    bool told = false;  // the entry has said it for the next call, or for this one
    bool arrives = false, waited = false, has_set = false;
    uint64_t feed_word = 0, dump = 0;
    uint64_t barriers = 0;
    std::vector<bool> ran;  // op -> this core has run it
    std::unordered_map<int64_t, uint32_t> last_of_stream;
    std::set<std::string> preloaded;
    std::string last_function;
    uint64_t untold = 0;  // a word that it has stored and not cleaned

    // polling
    uint64_t polled = 0, poll_value = 0, polls = 0, poll_progress = 0;
    bool polling = false;  // it loads a word again and again, and sees no change

    // scheduling
    int64_t budget = 0;
    uint64_t run_until = UINT64_MAX;
    uint64_t priority = 0;
    jmp_buf context;
    void* stack = nullptr;
};

struct Agent {  // something outside the cores that writes words
    uint64_t trigger = 0;  // a word that must have this value first; 0: none
    uint64_t value = 1;
    uint64_t delay = 0;    // steps from then on
    bool armed = false, done = false;
    uint64_t due = 0;
    std::string name;
    bool answers = false;  // the order of its trigger passes on to what it writes
    Clock clock;           // it counts behind the cores
};

struct Link {  // a word of the emulated memory and one of the host that stand for each other
    uint64_t device = 0, host = 0;
    bool to_host = false;
};

struct Settings {  // as in library.py
    uint64_t seed;
    uint64_t para_base;
    uint64_t sync_base;        // what slot 0 holds
    uint64_t stall_limit;      // steps of all cores together without progress
    double watchdog_s;
    double patience_s;         // how long to wait for words that the host sets
    int32_t cubes, vectors, vectors_per_block;
    int32_t launch_type;       // a Type
    int32_t preload_lines_cube, preload_lines_vector;  // the most of one request
    int32_t preload_entry;     // each core asks for the beginning of the kernel
    int32_t order;
    int32_t flag_limit;
    int32_t cube_flag, vector_flag, vectors_to_cube_flag, cube_to_vectors_flag;
    int32_t cache_line;        // bytes that one dcci covers
    int32_t evict, speculate;  // per 1024 steps
    int32_t quantum;
    int32_t shuffle;           // core ids in a random order
    int32_t races;             // look for unordered accesses
    int32_t record;
    int32_t watchdog_exits;    // a sub-kernel that makes no step ends the process
    int32_t followed;          // by another launch, which finds what this one leaves
};

struct Machine {
    Settings settings{};
    std::shared_ptr<SharedState> shared;
    uint32_t first_actor = 0;  // where its cores, and behind them its agents, stand in clocks
    std::string rank;          // of several chips that run together; empty: it runs alone
    Random random;
    std::vector<std::unique_ptr<Core>> cores;
    std::vector<Op> ops;
    std::map<uint32_t, StandIn> stand_ins;  // by op; empty: sub-kernels have code of their own
    std::map<uint64_t, Region> regions;  // by their end
    std::vector<uint64_t> region_ends;   // as they were named: where they lie differs from run to run
    std::map<uint64_t, Word> words;
    std::unordered_map<uint64_t, Stores> control;  // control words of feed-sync-all
    std::vector<Record> records;
    std::vector<Agent> agents;
    std::vector<Link> links;
    std::set<uint64_t> taken;  // words that the host has set
    int (*agent_acts)(int) = nullptr;
    std::unordered_map<const void*, std::string> functions;
    std::vector<std::string> function_names;
    std::unordered_map<std::string, uint32_t> function_numbers;
    std::string error;

    // rounds of class-wide flags: per flag and core, arrivals that other cores have yet to match
    std::unordered_map<uint32_t, std::deque<std::pair<uint64_t, Clock>>> arrived;

    Core* running = nullptr;
    jmp_buf scheduler;
    void (*entry[2])() = {nullptr, nullptr};
    uint64_t dump_area = 0, dump_part = 0;
    uint64_t *early_start[2] = {nullptr, nullptr}, *feed[2] = {nullptr, nullptr};  // of subkernel.h, per class
    uint64_t sequence = 0;
    uint64_t held_until = 0;
    bool stopping = false;
    int uncaught_outside = 0;  // exceptions on their way through this thread when the launch began
    bool follows = false;  // an earlier launch on the same memory and flags
    std::vector<bool> is_held;
    std::vector<Core*> ready;

    // scheduler.cpp
    void run();
    void begin();
    Turn turn();    // a core goes on, or something outside
    void release(); // the cores are over, or are stopped
    void check_end();
    void step(uint64_t cost);
    void give_way();
    void look_around();  // every kRound steps: stops a launch without progress, or on Ctrl-C
    [[noreturn]] void stop(const std::string& why);
    void fail(const Core& core, const std::string& why);  // the launch stops at the next step
    std::string who(const Core& core) const;
    std::string where(const Core& core) const;
    std::string standing() const;  // what each core does or waits for
    void note(What what, uint32_t detail = 0, uint64_t value = 0);

    // memory.cpp
    const Region& region(uint64_t address, uint64_t bytes, const char* doing);
    uint64_t load(uint64_t address, int bytes);
    void store(uint64_t address, uint64_t value, int bytes);
    void copy_in(void* local, uint64_t address, uint64_t bytes);
    void copy_out(uint64_t address, const void* local, uint64_t bytes);
    void clean(uint64_t address, bool entire);
    void land(Core& core, int pipe);  // what is in a pipe happens; -1: in all
    void land_one(Core& core, size_t place);
    bool land_any();                  // the engines of cores that wait go on
    void disturb(Core& core);         // random evictions, fills and landings
    void read_any_line();
    void read_ahead();
    void finish_memory(Core& core);

    // words.cpp
    void saw_word(uint64_t address, uint64_t value);                     // the running core loads it
    void word_lands(Core& core, uint64_t address, uint64_t value);       // a store reaches memory
    void control_lands(const Core& core, uint64_t address);
    void check_line(Core& core, uint64_t line, const CachedLine& cached);  // before it is written back
    void check_waits(const Core& core, uint32_t op);                     // events of an op that begins
    void check_told(const Core& core, const std::string& doing);
    void check_words();                                                  // at the end
    void check_words_found();                                            // at the begin of a later launch

    // order.cpp
    void has_stored(Core& core, uint32_t op);  // the op has issued its last store
    void settle(Core& core);                   // a drain, or a signal in the pipe of the copies
    bool has_block(const Op& op, const Core& core) const;
    int64_t block_of(const Op& op, const Core& core) const;
    bool knows(const Core& core, uint32_t op, const Core*& missing) const;  // that all blocks of an op have stored
    void check_needs(const Core& core, uint32_t op, bool before_wait);
    void check_issue(Core& core, uint32_t op, int copy);
    void check_blocks();  // at the end

    // races.cpp
    struct Actor {  // who makes an access: a core, or an agent outside
        uint32_t index;
        const Clock& clock;
        uint32_t op;
        const Core* core;
    };
    std::string read_problem(const Actor& actor, uint64_t address, uint64_t bytes);
    std::string write_problem(const Actor& actor, uint64_t address, uint64_t bytes, uint32_t op);
    bool agent_reads(int agent, uint64_t address, uint64_t bytes);
    bool agent_writes(int agent, uint64_t address, uint64_t value);
    std::string actor_name(uint32_t actor) const;
    std::string name_at(uint64_t address) const;  // of a word or a region
    void saw_read(uint64_t address, uint64_t bytes);
    void saw_write(Core& core, const Clock& clock, uint64_t address, uint64_t bytes, uint32_t op);
    void saw_intent(uint64_t address, uint64_t bytes, bool cached);
    void saw_stale(uint64_t address, uint64_t line, const CachedLine& cached);

    // flags.cpp
    void signal(int pipe, uint64_t config);
    void arrive_all(const Core& core, const Queued& signal);
    void arrive_block(const Core& core, const Queued& signal);
    void deliver(const Core& core, const Queued& signal);
    void wait(int64_t flag);
    void check_leaks(const std::string& found);  // `found`: when flags that are set are a mistake

    // calls.cpp
    void call(const char* function, int copy, uint64_t first_slot, void (*body)(uint64_t));
    void call_with(const char* function, int copy, const uint64_t* pointers, int count, void (*body)(const uint64_t*));
    uint32_t find_op(const char* function, const std::function<bool(const Op&)>& belongs);
    void begin_call(uint32_t index, int copy);
    void end_call(int copy);
    void sync_all();
    void wait_previous();
    void set_next();
    void check_told_op(const char* asks);
    void tell(const Core& core);  // the variables of subkernel.h that each core has for itself
    void reached(int point);      // what the text of subkernel.h does

    void write_word(uint64_t address, uint64_t value);  // by an agent outside
    uint64_t line_of(uint64_t address) const { return address & ~(uint64_t(settings.cache_line) - 1); }
    uint64_t version_of(uint64_t line);  // of the memory behind a cache line

private:
    Core* choose();
    void resume(Core& core);
    bool act(bool nobody_else);
    bool follow_links();
    bool wait_for_host();
    bool waits_in_vain(const Core& core) const;
    bool stuck() const;
    void hold_some();
    void unwind();
    bool unwinds() const;
    CachedLine& cached_line(uint64_t line, bool speculative);
    void drop(Core& core, uint64_t line);
    void put(Core& core, const Clock& clock, uint64_t address, const uint8_t* bytes, uint64_t count, uint32_t op);
    void raise(const Core& by, Core& core, int64_t flag, uint64_t time, const Clock& clock);
};

extern thread_local Machine* machine;  // of the launch that this thread runs

}  // namespace emulator
