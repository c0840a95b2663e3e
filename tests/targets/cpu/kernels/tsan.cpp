// tsan.cpp: launches an emitted entry through the host library, with plain threads in place of OpenMP's, for
// ThreadSanitizer. The entry's file says what there is to launch (tsan.h). In the environment WATCHDOG is the period of
// the watchdog in seconds, LAUNCHES how many launches each thread makes. The program prints a number that depends on
// every result.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <array>
#include <thread>
#include <vector>

#include "program.h"
#include "superkernel/events.h"
#include "superkernel/wait.h"
#include "tsan.h"

using sk::host::Agent;
using sk::host::Facts;
using sk::host::Program;
using sk::host::Running;

extern "C" {
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
int team_size() { return launched.cores; }

// the control agent of dynamic ops: reads what the op will read, then answers
void answer(Agent* agent, Running* running, const int64_t* input) {
    for (int i = 0; i < launched.agent_tilings; ++i) {
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
    std::vector<std::array<int64_t, kNumbers>> buffers(launched.buffers);
    int64_t words[2] = {};
    std::vector<uint64_t> values;
    for (auto& buffer : buffers) values.push_back(reinterpret_cast<uint64_t>(buffer.data()));
    for (int64_t& word : words) values.push_back(reinterpret_cast<uint64_t>(&word));
    const std::vector<int64_t> sizes(values.size());
    Agent* const agent = sk_agent_create();
    const int launches = int(setting("LAUNCHES", 100));
    for (int i = 0; i < launches; ++i) {
        Running* running = sk_launch_begin(program);
        std::vector<std::thread> beside;
        int64_t *input = buffers[launched.tiling_reads].data(), *second = buffers[1].data(), *both = words;
        sk_agent_attach(agent, running);
        if (launched.agent_tilings != 0) beside.emplace_back([=] { answer(agent, running, input); });
        if (launched.events != 0) beside.emplace_back([=] { relay(both, second); });
        if (sk_launch_run(running, values.data(), sizes.data(), 0) != 0) abort();
        for (std::thread& thread : beside) thread.join();
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
    const std::vector<uint64_t> literals(launched.slot_count);
    const std::vector<int64_t> sizes(launched.buffers + 2);
    const std::vector<int64_t> offsets(launched.buffers + 2, -1);  // every buffer is passed, none is in the arena
    Facts facts{};
    memset(&facts, 0, sizeof facts);
    facts.entry = launched.entry;
    facts.name = "raced";
    facts.cores = launched.cores;
    facts.slot_count = launched.slot_count;
    facts.source_count = launched.buffers + 2;
    facts.slot_source = launched.slots;
    facts.slot_literal = literals.data();
    facts.source_offset = offsets.data();
    facts.source_bytes = sizes.data();
    facts.rendezvous_count = launched.rendezvous;
    facts.tiling_count = launched.tilings;
    facts.counter_count = launched.counters;
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
