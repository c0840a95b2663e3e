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
        MemoryLine& known = m.lines[line];
        if (!known.shadow) known.shadow = std::make_unique<Shadow>();
        visit(known.shadow->cells[(grain * kGrain - line) / kGrain], grain * kGrain);
    }
}

std::string place_of(Machine& m, uint64_t address) {
    auto found = m.regions.upper_bound(address);
    if (found == m.regions.end()) return "memory";
    return "byte " + std::to_string(address - found->second.begin) + " of " + found->second.name;
}

std::string by(Machine& m, const Access& access) {
    std::string op = access.op == kNobody ? "the entry" : "op '" + m.ops[access.op].name + "'";
    return op + " on the " + m.who(*m.cores[access.core]);
}

bool ordered(const Core& core, const Access& before) {
    return before.core == kNobody || before.core == core.index || core.clock[before.core] >= before.at;
}

}  // namespace

void Machine::saw_read(uint64_t address, uint64_t bytes) {
    Core& core = *running;
    each_cell(*this, address, bytes, [&](Cell& cell, uint64_t at) {
        const Access& intent = cell.intent;
        bool own_cache = intent.core == core.index && cell.intent_cached && core.cache.count(at & ~(kLine - 1));
        if (intent.core != kNobody && !own_cache) {
            stop("reads " + place_of(*this, at) + " while the store of " + by(*this, intent) +
                 (cell.intent_cached ? " is still in its data cache" : " is still on its way"));
        }
        if (!ordered(core, cell.write)) {
            stop("reads " + place_of(*this, at) + " without being ordered after the store of " + by(*this, cell.write));
        }
        Access now{core.index, core.clock[core.index], core.op};
        if (cell.readers) {
            (*cell.readers)[core.index] = now;
        } else if (cell.read.core == kNobody || cell.read.core == core.index) {
            cell.read = now;
        } else {
            cell.readers = std::make_unique<std::vector<Access>>(cores.size());
            (*cell.readers)[cell.read.core] = cell.read;
            (*cell.readers)[core.index] = now;
        }
    });
}

// A store is made, but not yet in memory.
void Machine::saw_intent(uint64_t address, uint64_t bytes, bool cached) {
    Core& core = *running;
    each_cell(*this, address, bytes, [&](Cell& cell, uint64_t at) {
        if (cell.intent.core != kNobody && cell.intent.core != core.index) {
            stop("stores to " + place_of(*this, at) + " while the store of " + by(*this, cell.intent) +
                 " has not reached memory");
        }
        cell.intent = {core.index, core.clock[core.index], core.op};
        cell.intent_cached = cached;
    });
}

// A store lands. Lines of a cache are written as a whole, so that a neighbour's newer value may be lost.
void Machine::saw_write(Core& core, uint64_t address, uint64_t bytes, uint32_t op) {
    auto place = regions.upper_bound(address);
    if (place != regions.end() && place->second.words) return;
    each_cell(*this, address, bytes, [&](Cell& cell, uint64_t at) {
        if (cell.intent.core == core.index) {
            if (op == kNone) op = cell.intent.op;
            cell.intent = Access{};
        }
        if (stopping) return;
        std::string problem;
        if (!ordered(core, cell.write)) {
            problem = "the store of " + by(*this, cell.write);
        } else if (cell.readers) {
            for (const Access& reader : *cell.readers) {
                if (!ordered(core, reader)) problem = "the read by " + by(*this, reader);
            }
        } else if (!ordered(core, cell.read)) {
            problem = "the read by " + by(*this, cell.read);
        }
        if (!problem.empty()) {
            stopping = true;
            std::string whose = op == kNone ? std::string() : " of op '" + ops[op].name + "'";
            error = who(core) + ", " + where(core) + ": its store" + whose + " to " + place_of(*this, at) +
                    " reaches memory without being ordered after " + problem;
            return;
        }
        cell.write = {core.index, core.clock[core.index], op};
        cell.read = Access{};
        cell.readers.reset();
    });
}

void Machine::saw_stale(uint64_t line, const CachedLine& cached) {
    if (!settings.races) return;
    const MemoryLine& known = lines[line];
    if (cached.version == known.version) return;
    stop("reads " + place_of(*this, line) + " through a cached line that is older than the last store to it: "
         "it must be invalidated first");
}

}  // namespace emulator
