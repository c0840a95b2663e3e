// tsan.cpp: launches an emitted entry through the host library, with plain threads in place of OpenMP's, for
// ThreadSanitizer. The compiler's command line says ENTRY, CORES, RENDEZVOUS, TILINGS (that the agent is asked for), DYNAMIC (all tilings),
// TILING_READS (the buffer that the agent looks at), BUFFERS (how many names are memory; the ones behind them are event words), EVENTS, and SLOTS: per slot
// its source, as Numbering.slot_sources gives it. COUNTERS: how many there are. In the
// environment WATCHDOG is the period of the watchdog in seconds, LAUNCHES how many launches each thread makes.
// The program prints a number that depends on every result.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <thread>

#include "program.h"
#include "superkernel/events.h"
#include "superkernel/wait.h"

using sk::host::Agent;
using sk::host::Facts;
using sk::host::Program;
using sk::host::Running;

extern "C" {
void ENTRY(sk::Launch*, int);
void sk_host_openmp(void* parallel, void* thread, void* team);
void sk_team_policy(int32_t chosen);
Program* sk_program_create(const Facts* facts);
void sk_program_destroy(Program* program);
Running* sk_launch_begin(Program* program);
int32_t sk_launch_run(Running* running, const uint64_t* values, const int64_t* bytes, int32_t interrupts);
void sk_launch_end(Running* running);
Agent* sk_agent_create();
void sk_agent_attach(Agent* agent, Running* running);
int32_t sk_agent_next(Agent* agent);
void sk_agent_answer(Running* running, int32_t tiling, int64_t key, int64_t blocks);
}

namespace {

constexpr int kLaunchers = 2;
constexpr int kNumbers = 48;
constexpr int kSources = BUFFERS + 2;
constexpr int32_t kSlots[] = {SLOTS};
constexpr int kSlotCount = sizeof kSlots / sizeof kSlots[0];

double setting(const char* name, double otherwise) {
    const char* const text = getenv(name);
    return text == nullptr ? otherwise : atof(text);
}

thread_local int thread_here = 0;

void parallel(void (*region)(void*), void* data, unsigned threads, unsigned) {
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) {
        others.emplace_back([=] {
            thread_here = int(i);
            region(data);
        });
    }
    thread_here = 0;
    region(data);
    for (std::thread& other : others) other.join();
}
int thread_number() { return thread_here; }
int team_size() { return CORES; }

// the control agent of dynamic ops: reads what the op will read, then answers
void answer(Agent* agent, Running* running, const int64_t* input) {
    for (int i = 0; i < TILINGS; ++i) {
        const int32_t tiling = sk_agent_next(agent);
        sk_agent_answer(running, tiling, 0, 1 + (input[0] & 1));
    }
}

// somebody outside: waits for the first event word, writes the second buffer, sets the second word
void relay(int64_t* words, int64_t* buffer) {
    while (!sk_event_is_set(words)) sched_yield();
    buffer[0] += 1;
    sk_event_set(words + 1);
}

void launch_often(Program* program, uint64_t* digest) {
    static thread_local int64_t buffers[BUFFERS][kNumbers];
    static thread_local int64_t words[2];
    uint64_t values[kSources];
    int64_t sizes[kSources] = {};
    for (int i = 0; i < BUFFERS; ++i) values[i] = reinterpret_cast<uint64_t>(buffers[i]);
    for (int i = 0; i < 2; ++i) values[BUFFERS + i] = reinterpret_cast<uint64_t>(words + i);
    Agent* const agent = sk_agent_create();
    const int launches = int(setting("LAUNCHES", 100));
    for (int i = 0; i < launches; ++i) {
        Running* running = sk_launch_begin(program);
        std::vector<std::thread> beside;
        int64_t *input = buffers[TILING_READS], *second = buffers[1], *both = words;
        sk_agent_attach(agent, running);
        if (TILINGS != 0) beside.emplace_back([=] { answer(agent, running, input); });
        if (EVENTS != 0) beside.emplace_back([=] { relay(both, second); });
        if (sk_launch_run(running, values, sizes, 0) != 0) abort();
        for (std::thread& one : beside) one.join();
        sk_event_clear(words);
        sk_launch_end(running);
        for (const auto& buffer : buffers) {
            for (const int64_t number : buffer) *digest = 31 * *digest + uint64_t(number);
        }
    }
}

}  // namespace

int main() {
    sk_host_openmp(reinterpret_cast<void*>(parallel), reinterpret_cast<void*>(thread_number),
                   reinterpret_cast<void*>(team_size));
    sk_team_policy(1);  // always
    const uint64_t literals[kSlotCount] = {};
    Facts facts{};
    memset(&facts, 0, sizeof facts);
    facts.entry = ENTRY;
    facts.name = "raced";
    facts.cores = CORES;
    facts.slot_count = kSlotCount;
    facts.source_count = kSources;
    facts.slot_source = kSlots;
    facts.slot_literal = literals;
    const int64_t sizes[kSources] = {};
    int64_t offsets[kSources];
    for (int64_t& offset : offsets) offset = -1;  // every buffer is passed, none is in the arena
    facts.source_offset = offsets;
    facts.source_bytes = sizes;
    facts.rendezvous_count = RENDEZVOUS;
    facts.tiling_count = DYNAMIC;
    facts.counter_count = COUNTERS;
    facts.watchdog_s = setting("WATCHDOG", 60);
    facts.report_path = "/dev/null";
    facts.delay_seed = 5;
    Program* program = sk_program_create(&facts);
    std::vector<std::thread> launchers;
    uint64_t digests[kLaunchers] = {};
    for (int i = 0; i < kLaunchers; ++i) launchers.emplace_back(launch_often, program, digests + i);
    for (std::thread& launcher : launchers) launcher.join();
    sk_program_destroy(program);
    printf("launched, results");
    for (const uint64_t digest : digests) printf(" %016llx", static_cast<unsigned long long>(digest));
    puts("");
}
