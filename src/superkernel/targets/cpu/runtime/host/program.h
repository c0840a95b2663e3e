// program.h: the host's state of a loaded super kernel and of its launches.
#pragma once

#include <signal.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "float_mode.h"
#include "superkernel/check_tables.h"
#include "superkernel/state.h"

namespace sk::host {

// The emitted entry: one core's part of the plan, or all of it in order when core is kWholePlan.
using Entry = void (*)(Launch*, int core);
constexpr int kWholePlan = -1;

constexpr int kReportBytes = 16 * 1024;

// What the ops do with the memory of a name.
enum class BufferUse : uint8_t { kNoMemory, kRead, kWritten };

// Facts that do not change between launches. Filled by the caller, copied at creation.
struct Facts {
    Entry entry;
    const char* name;
    int32_t cores;
    int32_t slot_count;
    int32_t source_count;       // names that the caller passes
    const int32_t* slot_source; // per slot: index of its name, or < 0: see kLiteral and below
    const uint64_t* slot_literal;  // per slot: a literal's bits, or what is added to the value of its name
    int32_t rendezvous_count;
    int32_t tiling_count;
    int32_t counter_count;
    int64_t copies_bytes;          // private copies of the outputs of replicated ops
    int32_t step_count;
    const char* const* step_text;  // per step, for reports
    int32_t stamp_room;            // time stamps per core and launch
    int32_t needs_team;            // some op calls sync_all: one core alone cannot run the plan
    double watchdog_s;
    const char* report_path;
    uint64_t delay_seed;
    int32_t alone;  // the calling thread runs the whole plan, without a team
    int32_t watchdog_exits;        // a sub-kernel that does not return ends the process
    // debug-check=1; null otherwise
    const CheckedSlot* checked_slots;
    const CheckedStep* checked_steps;
    const BufferUse* buffer_use;  // per name
    int64_t arena_bytes;           // for buffers that a launch allocates for itself
    const int64_t* source_offset;  // per name: its place in the arena; < 0: it has none
    const int64_t* source_bytes;   // per name that has one: its size
    int32_t blocking_steps;        // at which a core may have to wait for another core
    double rank_watchdog_s;        // the limit of a wait for another rank; 0: what the window says
};

// In place of the size of a buffer: it was not passed, and has its place in the arena.
constexpr int64_t kInArena = -1;

constexpr int32_t kLiteral = -1;
// slots of dynamic op t: -2 - 3t - {0: key, 1: block count, 2: lock}
constexpr int32_t kFirstTiling = -2;

struct Agent;

// The copies on which a launch with debug-check=1 runs.
struct CheckedMemory {
    CheckTables tables = {};
    void* mapped = nullptr;
    uint64_t mapped_bytes = 0;
    std::vector<uint64_t> given, begin, end;  // per name; given: by the caller
    std::vector<int64_t> bytes;
    char* outer_copies = nullptr;
};

struct Running : Launch {
    std::unique_ptr<CheckedMemory> checked;
    std::vector<uint64_t> slot_store;
    std::vector<int64_t> byte_store;
    std::vector<uint64_t> values;  // per name, when the launch was bound here
    std::vector<int64_t> sizes;
    char* arena = nullptr;  // from the first launch on that needs it; kept for later launches
    void* arena_store = nullptr;
    size_t arena_mapped = 0;  // bytes
    const struct Program* program = nullptr;
    std::atomic<bool> reported{false};
    char report[kReportBytes];
    Agent* agent = nullptr;  // answers the requests of dynamic ops; see agent.cpp
    // the watchdog's memory of this launch
    uint64_t last_sum = 0;
    uint64_t last_change_ns = 0;
    uint64_t began_ns = 0, ended_ns = 0, began_ticks = 0, ended_ticks = 0;
    uint64_t dispatched_ns = 0, completed_ns = 0;  // while launches are timed
    int team = 0;
    std::atomic<uint32_t> formation{0}, formation_sleepers{0};  // see formation.h
    uint64_t solo_end_ns = 0;  // the launch ran solo inside its region, until then
    int32_t position = 0;  // in its launch sequence
    FloatMode float_mode;  // of the thread that launches
};

struct Program {
    Facts facts;
    std::string name, report_path;
    std::vector<std::string> texts;
    std::vector<int32_t> slot_source;
    std::vector<uint64_t> slot_literal;
    std::vector<int64_t> source_offset, source_bytes;
    std::mutex pool_mutex;
    std::vector<Running*> pool;
    int running = 0;
    bool closed = false;
    // what the calling thread computed in a solo launch, of which some are measured; 0: none yet
    mutable std::atomic<uint64_t> solo_ns{0};
    mutable std::atomic<uint32_t> solo_launches{0};
};

// The state of a launch; see running_state.cpp.
Running* make_running(const Program& program);
void free_running(Running* running);
void free_arena(Running& running);
bool fill_slots(Running& running, const uint64_t* values, const int64_t* bytes);  // false: the launch is stopped
void reset(Running& running);

// Writes what each core of a launch is doing.
void describe(const Running& running, const char* headline, char* text, size_t room);

// Whether an unfinished core is inside a sub-kernel, as opposed to a wait of the super kernel.
bool inside_sub_kernel(const Running& running);

// Print the report and leave it in the report file.
void publish(const Running& running, const char* text);
[[noreturn]] void end_process();  // with status 70

// Launch::request: hands the request of a dynamic op to the control agent of the launch.
void request_tiling(Launch* launch, int tiling);

void watch(Running* running);
void unwatch(Running* running);
// around a fork
void lock_watchdog();
void unlock_watchdog();
void forget_launches();

// During its lifetime, Ctrl-C stops the launch of this thread; Python would see it only afterwards.
class Interrupts {
  public:
    explicit Interrupts(bool wanted);
    ~Interrupts();
    Interrupts(const Interrupts&) = delete;
    bool wanted() const { return wanted_; }

  private:
    const bool wanted_;
    struct sigaction before_;
};

// One launch, from begin to end of its parallel region; 0, or the Fault that stopped it.
int32_t run(Running* running, const uint64_t* values, const int64_t* bytes, const Interrupts& interrupts);

// debug-check=1: copies the buffers and gives the values of the copies; null: there is no room for them.
const uint64_t* begin_check(Running& running, const uint64_t* values, const int64_t* bytes);
// Copies back what the ops of a launch that succeeded have written.
void end_check(Running& running);
void release(CheckedMemory& memory);

// Results of calls that ran nothing.
constexpr int64_t kMisfit = -1;
constexpr int64_t kClosed = -2;

void install_crash_handlers();
void guard_this_thread();
extern thread_local const Running* running_here;
extern thread_local int core_here;

}  // namespace sk::host

extern "C" {
sk::host::Running* sk_launch_begin(sk::host::Program* program);
int32_t sk_launch_run(sk::host::Running* running, const uint64_t* values, const int64_t* bytes, int32_t interrupts);
void sk_launch_end(sk::host::Running* running);
void sk_launch_record(sk::host::Running* running, uint64_t* room);
void sk_formation_forked();
}
