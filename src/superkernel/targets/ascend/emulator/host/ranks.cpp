// ranks.cpp: several chips at the same time. One core of one chip runs at a time; the seed decides which.
//
// Chips see each other through windows and through the words of events. What orders the cores of a chip orders those of
// different chips: a load of a word that sees a store comes after it. So races are found across chips as inside one.
#include "ranks.h"

#include <algorithm>

#include "watchdog.h"

namespace emulator {

// The clocks of a launch begin where those of the launch before on the same chip ended.
void Ranks::join(Machine& m, size_t place, const char* name, const Machine* before) {
    m.shared = shared;
    m.rank = name;
    if (before) {
        m.first_actor = before->first_actor;
    } else {
        m.first_actor = uint32_t(shared->actors);
        shared->actors += m.cores.size() + m.agents.size();
        shared->chips.resize(std::max(shared->chips.size(), place + 1));
    }
    shared->chips[place] = &m;
    Clock known;
    if (before) {
        for (const auto& core : before->cores) known.join(core->clock);
        for (const Agent& agent : before->agents) known.join(agent.clock);
    }
    for (auto& core : m.cores) core->clock = known;
    for (Agent& agent : m.agents) agent.clock = known;
}

void Ranks::run(Machine* (*next)(int rank)) {
    size_t count = shared->chips.size(), chosen = 0;
    uint64_t favoured = 0;  // turns that the chosen rank still has
    std::vector<Machine*> running = shared->chips;
    std::vector<uint64_t> blocked_at(count, UINT64_MAX);  // how far all were when a rank could not go on
    for (Machine* m : running) machine = m, m->begin();
    auto fail = [&](const std::string& why) {
        if (error.empty()) error = why;
    };
    while (error.empty()) {
        std::vector<size_t> able;
        bool over = true;
        for (size_t i = 0; i < count; ++i) {
            if (running[i]) over = false;
            if (running[i] && blocked_at[i] != shared->progress) able.push_back(i);
        }
        if (over) break;
        if (able.empty()) {
            std::string text;
            for (Machine* m : running) text += m ? m->standing() : "";
            fail("deadlock: no core of any rank can go on" + text);
            break;
        }
        bool goes_on = favoured && running[chosen] && blocked_at[chosen] != shared->progress;
        if (!goes_on) {
            size_t after = 0;
            while (after < able.size() && able[after] <= chosen) ++after;
            chosen = in_turn ? able[after % able.size()] : able[random.below(able.size())];
            favoured = in_turn ? 1 : uint64_t(1) << random.below(13);
        }
        --favoured;
        Machine* m = running[chosen];
        machine = shared->active = m;
        Turn turned = m->turn();
        if (turned == Turn::blocked) blocked_at[chosen] = shared->progress;
        if (turned != Turn::over && !m->stopping) continue;
        m->release();
        m->check_end();
        running[chosen] = nullptr;
        ++shared->progress;
        if (!m->error.empty()) fail(m->error.find(m->rank) == std::string::npos ? m->rank + ": " + m->error : m->error);
        if (!error.empty()) break;
        running[chosen] = next(int(chosen));
        if (running[chosen]) machine = running[chosen], machine->begin();
    }
    for (Machine* m : running) {
        if (!m) continue;
        machine = m;
        m->stopping = true;
        m->release();
    }
    machine = nullptr;
}

}  // namespace emulator

using emulator::Machine;
using emulator::Ranks;

extern "C" {

Ranks* sk_emu_ranks_new(uint64_t seed, int in_turn) {
    auto* made = new Ranks;
    made->random.seed(seed);
    made->in_turn = in_turn != 0;
    return made;
}

// `before`: the launch of the same rank before this one; null: it is the first.
void sk_emu_ranks_join(Ranks* ranks, Machine* m, int place, const char* name, const Machine* before) {
    ranks->join(*m, size_t(place), name, before);
}

// 0: all ran to their end. `next` is asked for the next launch of a rank, prepared and joined.
int sk_emu_ranks_run(Ranks* ranks, Machine* (*next)(int rank)) {
    {
        emulator::Watchdog watchdog(*ranks->shared, ranks->shared->chips[0]->settings);
        ranks->run(next);
    }
    return ranks->error.empty() ? 0 : 1;
}

const char* sk_emu_ranks_error(Ranks* ranks) { return ranks->error.c_str(); }
void sk_emu_ranks_free(Ranks* ranks) { delete ranks; }
}
