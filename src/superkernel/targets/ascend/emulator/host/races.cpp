// races.cpp: accesses that no flag orders, found even if the values come out right.
//
// A store counts from when it lands in memory, a load from when the program makes it. Two accesses of one place, one
// of them a store, must be ordered by flags or by words that cores poll; and no core may read a place whose
// last store is still in a cache or on its way, nor through a cached line that is older than a store before it.
#include "machine.h"

namespace emulator {

namespace {

template <class Visit>
void each_cell(Machine& m, uint64_t address, uint64_t bytes, Visit visit) {
    if (!m.settings.races || !bytes) return;
    uint64_t last = (address + bytes - 1) / kGrain;
    for (uint64_t grain = address / kGrain; grain <= last; ++grain) {
        uint64_t line = grain * kGrain & ~(kLine - 1);
        MemoryLine& known = m.shared->lines[line];
        if (!known.shadow) known.shadow = std::make_unique<Shadow>();
        visit(known.shadow->cells[(grain * kGrain - line) / kGrain], grain * kGrain);
    }
}

std::string place_of(Machine& m, uint64_t address) {
    auto found = m.regions.upper_bound(address);
    if (found == m.regions.end()) return "memory";
    return "byte " + std::to_string(address - found->second.begin) + " of " + found->second.name;
}

// The chip of an actor, and its place there.
std::pair<const Machine*, size_t> chip_of(const Machine& m, uint32_t actor) {
    for (const Machine* chip : m.shared->chips) {
        size_t place = size_t(actor) - chip->first_actor;
        if (actor >= chip->first_actor && place < chip->cores.size() + chip->agents.size()) return {chip, place};
    }
    return {&m, 0};
}

std::string by(Machine& m, const Access& access) {
    auto [chip, place] = chip_of(m, access.core);
    if (place >= chip->cores.size()) return m.actor_name(access.core);
    std::string op = access.op == kNobody ? "the entry" : "op '" + chip->ops[access.op].name + "'";
    return op + " on the " + m.actor_name(access.core);
}

bool ordered(const Machine::Actor& actor, const Access& before) {
    return before.core == kNobody || before.core == actor.index || actor.clock[before.core] >= before.at;
}

}  // namespace

std::string Machine::actor_name(uint32_t actor) const {
    auto [chip, place] = chip_of(*this, actor);
    return place < chip->cores.size() ? chip->who(*chip->cores[place]) : chip->agents[place - chip->cores.size()].name;
}

std::string Machine::name_at(uint64_t address) const {
    auto word = words.find(address & ~(kWordSize - 1));
    if (word != words.end()) return word->second.name;
    auto found = regions.upper_bound(address);
    return found != regions.end() && found->second.begin <= address ? found->second.name : "memory";
}

std::string Machine::read_problem(const Actor& actor, uint64_t address, uint64_t bytes) {
    std::string problem;
    each_cell(*this, address, bytes, [&](Cell& cell, uint64_t at) {
        if (!problem.empty()) return;
        const Access& intent = cell.intent;
        bool own_cache = actor.core && intent.core == actor.index && cell.intent_cached && actor.core->cache.count(line_of(at));
        if (intent.core != kNobody && !own_cache) {
            problem = "reads " + place_of(*this, at) + " while the store of " + by(*this, intent) +
                      (cell.intent_cached ? " is still in its data cache" : " is still on its way");
            return;
        }
        if (!ordered(actor, cell.write)) {
            problem = "reads " + place_of(*this, at) + " without being ordered after the store of " + by(*this, cell.write);
            return;
        }
        Access now{actor.index, actor.clock[actor.index], actor.op};
        if (cell.readers) {
            (*cell.readers)[actor.index] = now;
        } else if (cell.read.core == kNobody || cell.read.core == actor.index) {
            cell.read = now;
        } else {
            cell.readers = std::make_unique<std::vector<Access>>(shared->actors);
            (*cell.readers)[cell.read.core] = cell.read;
            (*cell.readers)[actor.index] = now;
        }
    });
    return problem;
}

void Machine::saw_read(uint64_t address, uint64_t bytes) {
    Core& core = *running;
    std::string problem = read_problem({core.actor, core.clock, core.op, &core}, address, bytes);
    if (!problem.empty()) stop(problem);
}

// A store is made, but not yet in memory.
void Machine::saw_intent(uint64_t address, uint64_t bytes, bool cached) {
    Core& core = *running;
    each_cell(*this, address, bytes, [&](Cell& cell, uint64_t at) {
        if (cell.intent.core != kNobody && cell.intent.core != core.actor) {
            stop("stores to " + place_of(*this, at) + " while the store of " + by(*this, cell.intent) +
                 " has not reached memory");
        }
        cell.intent = {core.actor, core.clock[core.actor], core.op};
        cell.intent_cached = cached;
    });
}

// A store lands. Lines of a cache are written as a whole, so that a neighbour's newer value may be lost.
std::string Machine::write_problem(const Actor& actor, uint64_t address, uint64_t bytes, uint32_t op) {
    std::string problem;
    each_cell(*this, address, bytes, [&](Cell& cell, uint64_t at) {
        if (cell.intent.core == actor.index) {
            if (op == kNone) op = cell.intent.op;
            cell.intent = Access{};
        }
        if (!problem.empty()) return;
        std::string other;
        if (!ordered(actor, cell.write)) {
            other = "the store of " + by(*this, cell.write);
        } else if (cell.readers) {
            for (const Access& reader : *cell.readers) {
                if (!ordered(actor, reader)) other = "the read by " + by(*this, reader);
            }
        } else if (!ordered(actor, cell.read)) {
            other = "the read by " + by(*this, cell.read);
        }
        if (!other.empty()) {
            std::string whose = op == kNone ? std::string() : " of op '" + ops[op].name + "'";
            problem = "its store" + whose + " to " + place_of(*this, at) + " reaches memory without being ordered after " + other;
            return;
        }
        cell.write = {actor.index, actor.clock[actor.index], op};
        cell.read = Access{};
        cell.readers.reset();
    });
    return problem;
}

void Machine::saw_write(Core& core, const Clock& clock, uint64_t address, uint64_t bytes, uint32_t op) {
    auto place = regions.upper_bound(address);
    if (place != regions.end() && place->second.words) return;
    std::string problem = write_problem({core.actor, clock, op, &core}, address, bytes, op);
    if (!problem.empty()) fail(core, problem);
}

// What an agent outside reads and writes is ordered like the accesses of a core; by its request, if it answers one.
bool Machine::agent_reads(int agent, uint64_t address, uint64_t bytes) {
    const Agent& who = agents[size_t(agent)];
    std::string problem = read_problem({first_actor + uint32_t(cores.size()) + uint32_t(agent), who.clock, kNone, nullptr}, address, bytes);
    if (!problem.empty() && !stopping) error = who.name + " " + problem, stopping = true;
    return problem.empty();
}

bool Machine::agent_writes(int agent, uint64_t address, uint64_t value) {
    Agent& who = agents[size_t(agent)];
    auto place = regions.upper_bound(address);
    MemoryLine& known = shared->lines[address & ~(kLine - 1)];
    if (place != regions.end() && place->second.words) {
        if (who.answers) known.released.join(who.clock);
    } else {
        Actor actor{first_actor + uint32_t(cores.size()) + uint32_t(agent), who.clock, kNone, nullptr};
        std::string problem = write_problem(actor, address, kWordSize, kNone);
        if (!problem.empty() && !stopping) error = who.name + ": " + problem, stopping = true;
        if (!problem.empty()) return false;
    }
    write_word(address, value);
    return true;
}

void Machine::saw_stale(uint64_t address, uint64_t line, const CachedLine& cached) {
    if (!settings.races) return;
    if (cached.version == version_of(line)) return;
    stop("reads " + place_of(*this, address) + " through a cached line that is older than the last store to it: "
         "it must be invalidated first");
}

}  // namespace emulator
