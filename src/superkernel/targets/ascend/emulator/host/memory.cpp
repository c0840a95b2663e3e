// memory.cpp: global memory as the cores see it.
//
// The scalar unit of a core goes through a data cache of its own: a load fills a line, a store dirties it, and nothing
// keeps caches coherent. A dirty line reaches memory, as a whole, when dcci cleans it or when it happens to be evicted;
// a clean one stays, however old, until dcci drops it or it happens to be evicted. Caches may also read lines ahead.
// The transfer engines go past the caches. A copy in reads memory; a copy out is on its way until a pipe barrier or
// chance lets it land, while its core goes on. A signal stands behind the copies of its pipe, and is given after them.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "machine.h"

namespace emulator {

namespace {
constexpr int kReadAhead = 16;
constexpr uint64_t kHit = 1, kMiss = 20, kCacheLines = 256, kPiece = 1024, kBytesPerTick = 32;

std::string hex(uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "0x%" PRIx64, value);
    return text;
}
}  // namespace

const Region& Machine::region(uint64_t address, uint64_t bytes, const char* doing) {
    auto found = regions.upper_bound(address);
    if (found != regions.end() && found->second.begin <= address && address + bytes <= found->second.end &&
        address + bytes >= address) {
        return found->second;
    }
    std::string text = std::string(doing) + " of " + std::to_string(bytes) + " bytes at " + hex(address) + ": ";
    if (found != regions.end() && found->second.begin <= address) {
        const Region& inside = found->second;
        stop(text + "byte " + std::to_string(address - inside.begin) + " of " + inside.name + ", which has " +
             std::to_string(inside.end - inside.begin));
    }
    if (found != regions.begin()) {
        const Region& before = std::prev(found)->second;
        if (address - before.end < 4096) {
            stop(text + std::to_string(address - before.end) + " bytes behind the end of " + before.name);
        }
    }
    stop(text + "no buffer is there");
}

void Machine::put(Core& core, const Clock& clock, uint64_t address, const uint8_t* bytes, uint64_t count, uint32_t op) {
    saw_write(core, clock, address, count, op);
    auto* memory = reinterpret_cast<uint8_t*>(address);
    if (std::memcmp(memory, bytes, count) != 0) ++shared->progress;
    std::memcpy(memory, bytes, count);
    for (uint64_t line = address & ~(kLine - 1); line < address + count; line += kLine) {
        MemoryLine& known = shared->lines[line];
        ++known.version;
        known.time = core.time;
    }
}

uint64_t Machine::version_of(uint64_t line) {
    uint64_t sum = 0;
    for (uint64_t part = line; part < line + uint64_t(settings.cache_line); part += kLine) sum += shared->lines[part].version;
    return sum;
}

void Machine::drop(Core& core, uint64_t line) {
    auto found = core.cache.find(line);
    if (found == core.cache.end()) return;
    if (found->second.dirty) {
        auto place = regions.upper_bound(line + kWordSize * uint64_t(__builtin_ctzll(found->second.stored)));
        uint64_t count = std::min(uint64_t(settings.cache_line), place->second.end - line);
        bool words_there = place->second.words;
        if (!words_there) {
            put(core, core.clock, line, found->second.bytes, count, kNone);
        } else {
            check_line(core, line, found->second);
            if (line_of(core.untold) == line) core.untold = 0;
            for (uint64_t at = 0; at < count; at += kWordSize) {
                if (found->second.stored >> (at / kWordSize) & 1) put(core, core.clock, line + at, found->second.bytes + at, kWordSize, kNone);
            }
            for (uint64_t part = line; part < line + count; part += kLine) shared->lines[part].released.join(core.clock);
            core.clock.advance(core.actor);
        }
    }
    core.cache.erase(found);
    auto key = std::find(core.cached.begin(), core.cached.end(), line);
    *key = core.cached.back();
    core.cached.pop_back();
}

CachedLine& Machine::cached_line(uint64_t line, bool speculative) {
    Core& core = *running;
    auto found = core.cache.find(line);
    if (found != core.cache.end()) {
        if (!speculative) core.time += kHit;
        return found->second;
    }
    if (core.cached.size() >= kCacheLines) drop(core, core.cached[random.below(core.cached.size())]);
    CachedLine& fresh = core.cache[line];
    std::memcpy(fresh.bytes, reinterpret_cast<const void*>(line), size_t(settings.cache_line));
    fresh.version = version_of(line);
    fresh.speculative = speculative;
    core.cached.push_back(line);
    if (!speculative) core.time += kMiss;
    return fresh;
}

uint64_t Machine::load(uint64_t address, int bytes) {
    Core& core = *running;
    const Region& place = region(address, uint64_t(bytes), "a load");
    uint64_t line = line_of(address);
    if (line_of(address + uint64_t(bytes) - 1) != line) stop("a load of " + hex(address) + " crosses a cache line");
    CachedLine& cached = cached_line(line, false);
    uint64_t value = 0;
    std::memcpy(&value, cached.bytes + (address - line), size_t(bytes));
    if (place.words) {
        // seeing what another core stored orders this core after that store, and not before it in time either
        if (cached.version == version_of(line)) {
            const MemoryLine& known = shared->lines[address & ~(kLine - 1)];
            core.clock.join(known.released);
            core.time = std::max(core.time, known.time);
        }
        saw_word(address, value);
    } else {
        if (!cached.dirty) saw_stale(address, line, cached);
        saw_read(address, uint64_t(bytes));
    }
    bool unchanged = core.polled == address && core.poll_value == value;
    if (core.polling != (unchanged && place.words)) {
        core.polling = !core.polling;
        note(core.polling ? What::poll_begin : What::poll_end, 0, address);
    }
    bool again = unchanged && core.poll_progress == shared->progress;
    core.polls = again ? core.polls + 1 : 0;
    core.polled = address, core.poll_value = value, core.poll_progress = shared->progress;
    if (core.polls > 1) core.budget = 0;
    step(1);
    return value;
}

void Machine::store(uint64_t address, uint64_t value, int bytes) {
    Core& core = *running;
    const Region& place = region(address, uint64_t(bytes), "a store");
    uint64_t line = line_of(address);
    if (line_of(address + uint64_t(bytes) - 1) != line) stop("a store to " + hex(address) + " crosses a cache line");
    if (address >= settings.para_base && place.begin == settings.para_base) stop("a store to the parameter block");
    CachedLine& cached = cached_line(line, false);
    if (!place.words) saw_intent(address, uint64_t(bytes), true);
    std::memcpy(cached.bytes + (address - line), &value, size_t(bytes));
    cached.stored |= uint64_t(1) << ((address - line) / kWordSize);
    cached.dirty = true;
    if (words.count(address)) core.untold = address;
    cached.speculative = false;
    core.polls = 0;
    step(1);
}

void Machine::clean(uint64_t address, bool entire) {
    Core& core = *running;
    if (!entire) region(address, 1, "dcci");
    if (entire) {
        std::vector<uint64_t> all = core.cached;
        for (uint64_t line : all) drop(core, line);
    } else {
        drop(core, line_of(address));
    }
    step(entire ? 32 : 4);
}

void Machine::copy_in(void* local, uint64_t address, uint64_t bytes) {
    Core& core = *running;
    if (!bytes) return;
    region(address, bytes, "a copy in");
    core.polls = 0;
    for (uint64_t done = 0; done < bytes; done += kPiece) {
        uint64_t count = std::min(kPiece, bytes - done);
        saw_read(address + done, count);
        std::memcpy(static_cast<uint8_t*>(local) + done, reinterpret_cast<const void*>(address + done), count);
        step(1 + count / kBytesPerTick);
    }
}

void Machine::copy_out(uint64_t address, const void* local, uint64_t bytes) {
    Core& core = *running;
    if (!bytes) return;
    region(address, bytes, "a copy out");
    core.polls = 0;
    int pipe = core.kind == Class::cube ? kFixPipe : kOutPipe;
    core.undrained = true;
    for (uint64_t done = 0; done < bytes; done += kPiece) {
        uint64_t count = std::min(kPiece, bytes - done);
        saw_intent(address + done, count, false);
        auto* from = static_cast<const uint8_t*>(local) + done;
        core.queue.push_back({pipe, core.clock, core.time, address + done, core.op, std::vector<uint8_t>(from, from + count)});
        step(1 + count / kBytesPerTick);
    }
}

void Machine::land_one(Core& core, size_t place) {
    Queued next = std::move(core.queue[place]);
    core.queue.erase(core.queue.begin() + ptrdiff_t(place));
    if (next.is_signal()) {
        deliver(core, next);
    } else {
        put(core, next.clock, next.address, next.bytes.data(), next.bytes.size(), next.op);
    }
}

void Machine::land(Core& core, int pipe) {
    for (size_t i = 0; i < core.queue.size();) {
        if (pipe >= 0 && core.queue[i].pipe != pipe) {
            ++i;
        } else {
            land_one(core, i);
        }
    }
}

bool Machine::land_any() {
    size_t first = random.below(cores.size());
    for (size_t i = 0; i < cores.size(); ++i) {
        Core& core = *cores[(first + i) % cores.size()];
        if (core.queue.empty()) continue;
        land_one(core, 0);
        return true;
    }
    return false;
}

// With seed 0 nothing lands before it must.
void Machine::disturb(Core& core) {
    if (!core.queue.empty() && Order(settings.order) != Order::clock && random.chance(96)) land_one(core, 0);
    if (settings.evict && !core.cached.empty() && random.chance(uint64_t(settings.evict))) {
        drop(core, core.cached[random.below(core.cached.size())]);
    }
    if (settings.speculate && random.chance(uint64_t(settings.speculate))) read_any_line();
}

void Machine::read_any_line() {
    auto place = regions.find(region_ends[random.below(region_ends.size())]);
    auto size = uint64_t(settings.cache_line);
    uint64_t count = (place->second.end - place->second.begin + size - 1) / size;
    cached_line(line_of(place->second.begin + size * random.below(count)), true);
}

// While a core waits, its cache may read lines that are stored to a moment later.
void Machine::read_ahead() {
    if (!settings.speculate || !random.chance(256 + uint64_t(settings.speculate))) return;
    for (int i = 0; i < kReadAhead; ++i) read_any_line();
}

// When a core ends, its transfers land; a line that is still dirty is lost, or overwrites something later.
void Machine::finish_memory(Core& core) {
    land(core, -1);
    settle(core);
    std::vector<uint64_t> all = core.cached;
    for (uint64_t line : all) {
        if (core.cache[line].dirty) {
            auto place = regions.upper_bound(line);
            stop("ends while its data cache holds a store to byte " + std::to_string(line - place->second.begin) + " of " +
                 name_at(line) + " or behind it that nothing cleaned");
        }
        drop(core, line);
    }
    step(1);
}

}  // namespace emulator
