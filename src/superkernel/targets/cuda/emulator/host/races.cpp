// races.cpp: accesses of different warps that nothing orders, found even if the values come out right.
//
// Every warp has a vector clock. A release publishes it at a location, an acquire that reads the location joins it, a
// barrier joins the clocks of the warps that meet. Two accesses to one byte, one of them a write, must be ordered so,
// unless both are strong (relaxed or more, atomic) at a scope that holds both warps, or both write the same value, or one
// of two accesses of the same op is atomic.
#include <algorithm>

#include "machine.h"

namespace ptx {

namespace {

void prepare(Shadow& shadow, uint64_t bytes) {
    uint64_t cells = (bytes + shadow.granule - 1) / shadow.granule;
    if (shadow.cells.size() < cells) shadow.cells.resize(cells);
}

// Smaller accesses than any before: every cell becomes several.
void refine(Shadow& shadow, uint32_t granule, std::vector<std::vector<Access>>& sets) {
    uint32_t parts = shadow.granule / granule;
    std::vector<Cell> finer(shadow.cells.size() * parts);
    for (size_t k = 0; k < shadow.cells.size(); ++k) {
        for (uint32_t part = 0; part < parts; ++part) {
            Cell& cell = finer[k * parts + part];
            cell = shadow.cells[k];
            if (part && cell.readers) {
                sets.push_back(sets[cell.readers - 1]);
                cell.readers = uint32_t(sets.size());
            }
        }
    }
    shadow.cells.swap(finer);
    shadow.granule = granule;
}

std::string by(const Warp& warp, const Access& access, const char* did) {
    const Machine& m = *warp.machine;
    return m.op(access.op) + " on " + m.who(warp) + " " + did + "(line " + std::to_string(m.program[access.instruction].line) + ")";
}

}  // namespace

void Machine::saw(Warp& warp, Shadow& shadow, uint64_t offset, uint64_t bytes, uint64_t address, AccessKind kind) {
    bool write = kind.write;
    uint32_t strong = kind.strong;
    uint64_t unit = (offset | bytes) & (shadow.granule - 1);
    if (unit) refine(shadow, uint32_t(unit & -unit), shared->reader_sets);
    prepare(shadow, offset + bytes);
    auto& reader_sets = shared->reader_sets;
    auto& free_reader_sets = shared->free_reader_sets;
    Access now;
    now.at = warp.clock[warp.actor];
    now.warp = uint16_t(warp.actor);
    now.op = uint16_t(op_number(warp));
    now.instruction = warp.at;
    now.strong = strong;
    now.atomic = kind.atomic;
    now.bulk = kind.bulk;
    auto ordered = [&](const Access& before) {
        if (!before.at || before.warp == warp.actor || warp.clock[before.warp] >= before.at) return true;
        if (before.op == now.op && now.op && (before.atomic || kind.atomic)) return true;  // a loop around atom.cas
        if (!before.strong || !strong) return false;
        const Warp& other = actor(before.warp);
        bool device = other.machine->device == warp.machine->device;
        bool cluster = device && other.block->cluster == warp.block->cluster;
        return (before.strong >= 3 && strong >= 3 && device) || (before.strong >= 2 && strong >= 2 && cluster) ||
               (before.strong == 4 && strong == 4) || other.block->place == warp.block->place;
    };
    uint64_t first = offset / shadow.granule, last = (offset + bytes - 1) / shadow.granule;
    for (uint64_t k = first; k <= last; ++k) {
        Cell& cell = shadow.cells[k];
        if (kind.bulk && cell.write.at && !cell.write.bulk && warp.clock[shared->warps + cell.write.warp] < cell.write.at) {
            fail(warp, "a bulk copy touches " + place(warp, address + (k - first) * shadow.granule) + ", which " + by(actor(cell.write.warp), cell.write, "stored ") + ", and no fence.proxy.async lies between");
        }
        const Access* clash = ordered(cell.write) || kind.silent ? nullptr : &cell.write;
        bool with_write = clash != nullptr;
        if (!clash && write) {
            if (cell.readers) {
                for (const Access& reader : reader_sets[cell.readers - 1]) {
                    if (!ordered(reader)) clash = &reader;
                }
            } else if (!ordered(cell.read)) {
                clash = &cell.read;
            }
        }
        if (clash) {
            fail(warp, std::string("data race: it ") + (write ? "writes " : "reads ") + place(warp, address + (k - first) * shadow.granule) +
                           ", and nothing orders this after the " + (with_write ? "write" : "read") + " by " + by(actor(clash->warp), *clash, ""));
        }
        if (write) {
            cell.write = now;
            cell.read = Access();
            if (cell.readers) free_reader_sets.push_back(cell.readers - 1);
            cell.readers = 0;
        } else if (cell.readers) {
            reader_sets[cell.readers - 1][warp.actor] = now;
        } else if (!cell.read.at || cell.read.warp == warp.actor || warp.clock[cell.read.warp] >= cell.read.at) {
            cell.read = now;
        } else {
            if (free_reader_sets.empty()) {
                reader_sets.emplace_back();
                free_reader_sets.push_back(uint32_t(reader_sets.size() - 1));
            }
            uint32_t set = free_reader_sets.back();
            free_reader_sets.pop_back();
            reader_sets[set].assign(shared->warps, Access());
            reader_sets[set][cell.read.warp] = cell.read;
            reader_sets[set][warp.actor] = now;
            cell.readers = set + 1;
        }
    }
}

// A strong store or an atomic operation. What it publishes is the clock of the warp if it releases, else what the last
// fence said. A store ends the release sequence that was there, an atomic operation continues it.
void Machine::released(Warp& warp, uint64_t key, Semantics semantics, Scope scope, bool read_modify_write) {
    bool releases = semantics == Semantics::release || semantics == Semantics::acq_rel;
    Location& location = shared->locations[key];
    if (location.gpu.size() <= device) location.gpu.resize(shared->devices.size());
    if (!read_modify_write) {
        location.system.clear();
        for (Clock& clock : location.gpu) clock.clear();
        location.cluster.clear();
        location.cta.clear();
    }
    auto publish = [&](const Clock& said, Scope most) {
        location.cta[warp.block->place].join(said);
        if (most >= Scope::cluster) location.cluster[warp.block->cluster->place].join(said);
        if (most >= Scope::gpu) location.gpu[device].join(said);
        if (most >= Scope::system) location.system.join(said);
    };
    if (releases) {
        publish(warp.clock, scope);
        warp.clock.advance(warp.actor);
        return;
    }
    for (Scope of_fence : {Scope::cta, Scope::cluster, Scope::gpu, Scope::system}) {
        const Clock& said = warp.fence[uint32_t(of_fence)];
        if (!said.empty()) publish(said, std::min(scope, of_fence));
    }
}

// A strong load or an atomic operation: the warp is ordered after what the location publishes, at once if it acquires,
// else from its next fence on.
void Machine::acquired(Warp& warp, uint64_t key, Semantics semantics, Scope scope) {
    auto found = shared->locations.find(key);
    if (found == shared->locations.end()) return;
    bool acquires = semantics == Semantics::acquire || semantics == Semantics::acq_rel;
    Clock& to = acquires ? warp.clock : warp.pending;
    const Location& location = found->second;
    if (scope >= Scope::system) to.join(location.system);
    if (scope >= Scope::gpu && device < location.gpu.size()) to.join(location.gpu[device]);
    auto of_cluster = location.cluster.find(warp.block->cluster->place);
    if (scope >= Scope::cluster && of_cluster != location.cluster.end()) to.join(of_cluster->second);
    auto near = location.cta.find(warp.block->place);
    if (near != location.cta.end()) to.join(near->second);
}

// What the warp knows of, the asynchronous proxy sees from now on.
void Machine::fence_proxy(Warp& warp) {
    warp.clock.copy_first_half();
    warp.clock.advance(warp.actor);
}

void Machine::fence(Warp& warp, Scope scope) {
    warp.clock.join(warp.pending);
    warp.fence[uint32_t(scope)] = warp.clock;
    warp.clock.advance(warp.actor);
}

}  // namespace ptx
