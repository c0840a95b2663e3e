// Threads that arrive at a launch at random times, or not for a while: all of them are its team, or core 0 runs it alone.
#include "formation.h"

#include <stdio.h>
#include <stdlib.h>

#include <random>
#include <thread>

#include "blocking.h"

using namespace sk::host;

extern "C" void sk_team_policy(int32_t chosen);

static int run(int cores, int rounds, bool late, int* teams, int* solos) {
    Program program{};
    program.facts.cores = cores;
    for (int round = 0; round < rounds; ++round) {
        Running running;
        running.program = &program;
        running.cores = cores;
        running.membarrier = round % 2 == 0 && syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
        std::vector<Part> parts(cores);
        std::vector<std::thread> threads;
        for (int core = 0; core < cores; ++core) {
            threads.emplace_back([&, core] {
                std::mt19937 random(unsigned(round * 64 + core));
                // around the time for which core 0 waits
                const uint64_t delay = late && core == cores - 1 ? 90'000 + random() % 40'000 : random() % 30'000;
                for (const uint64_t start = sk::now_ns(); sk::now_ns() - start < delay;) sched_yield();
                parts[core] = join_formation(running, core);
            });
        }
        for (std::thread& thread : threads) thread.join();
        const bool team = parts[0] == Part::kTeam;
        ++*(team ? teams : solos);
        if (!team && parts[0] != Part::kSolo) return 1;
        for (int core = 1; core < cores; ++core) {
            if (parts[core] != (team ? Part::kTeam : Part::kAbsent)) return 1;
        }
    }
    return 0;
}

// In a crowd a launch asks for a team if it computes longer than its waits may take.
static int crowd() {
    Program program{};
    program.facts.cores = 1;
    program.facts.blocking_steps = 9;
    sk_team_policy(0);
    report_late_team(1'000'000'000);
    int wrong = !solo_before_region(program);  // nothing is known of it
    program.solo_ns = 50'000'000;
    wrong += !solo_before_region(program);
    program.solo_ns = 70'000'000;
    wrong += solo_before_region(program);
    return wrong;
}

int main(int, char** arguments) {
    int teams = 0, solos = 0, wrong = 0;
    const int rounds = atoi(arguments[1]);
    for (int cores : {2, 3, 6}) wrong += run(cores, rounds, cores != 3, &teams, &solos);
    sk_team_policy(1);
    int always_solos = 0;
    wrong += run(4, rounds / 4, true, &teams, &always_solos);
    wrong += crowd();
    printf("%d teams, %d solos, %d solos under 'always', %d wrong\n", teams, solos, always_solos, wrong);
    return wrong != 0 || always_solos != 0 || solos == 0 || teams == 0;
}
