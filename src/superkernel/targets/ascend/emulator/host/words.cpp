// words.cpp: words of events, locks and prefetches: who may touch them, when, and how they are left.
//
// P6: a notify comes after all that it tells of; no core of an op begins before its event was seen. P7: a launch leaves
// every word as the next one must find it. Both by what cores know of each other, not by when it happened.
#include <algorithm>
#include <cstring>

#include "machine.h"

namespace emulator {

namespace {

bool is_mixed(Type type) { return type == Type::mix_1_1 || type == Type::mix_1_2; }

Class leader(Type type) { return type == Type::cube_only || type == Type::mix_cube ? Class::cube : Class::vector; }

bool runs_on(Type type, Class kind) { return is_mixed(type) || leader(type) == kind; }

uint64_t in_memory(uint64_t address) { return *reinterpret_cast<const volatile uint64_t*>(address); }

bool has_seen(const Core& core, const Word& word) {
    return std::any_of(word.seen.begin(), word.seen.end(), [&](const Seen& seen) {
        return seen.actor == core.actor || core.clock[seen.actor] >= seen.at;
    });
}

bool is_under_way(const Core& core) {
    return std::any_of(core.queue.begin(), core.queue.end(), [](const Queued& one) { return !one.is_signal(); });
}

bool all_done(const Machine& m, const Core& core, const Word& word) {
    return std::all_of(word.ops.begin(), word.ops.end(), [&](uint32_t op) {
        return !m.has_block(m.ops[op], core) || core.ran[op];
    });
}

}  // namespace

// Words of events belong to one core: block 0 of the class of an op that sends or receives them.
static std::string touch_problem(const Machine& m, const Core& core, Word& word) {
    bool leads = core.block == 0 && core.sub_block == 0 && std::any_of(word.ops.begin(), word.ops.end(), [&](uint32_t op) {
                     return leader(m.ops[op].type) == core.kind;
                 });
    if (!leads) return "touches " + word.name + ", which belongs to block 0 of the class of its op";
    if (word.core != kNone && word.core != core.index) {
        return "touches " + word.name + ", which the " + m.who(*m.cores[word.core]) + " has touched";
    }
    word.core = core.index;
    return "";
}

void Machine::saw_word(uint64_t address, uint64_t value) {
    auto found = words.find(address);
    const Core& core = *running;
    if (found == words.end()) {
        auto known = control.find(address);
        bool cleared = known != control.end() &&
                       (known->second.first.actor == core.actor || core.clock[known->second.first.actor] >= known->second.first.at);
        if (!cleared && settings.races) stop("reads a word of " + name_at(address) + ", and nothing orders it after that was cleared");
        return;
    }
    Word& word = found->second;
    if (word.kind != WordKind::lock) {
        std::string problem = touch_problem(*this, core, word);
        if (!problem.empty()) stop(problem);
    }
    if (value != 1 || word.resets) return;
    word.seen.push_back({core.actor, core.clock[core.actor]});
    note(What::word_seen, 0, address);
}

// P6: at the wait point of an op.
void Machine::check_waits(const Core& core, uint32_t op) {
    if (!settings.races) return;
    for (uint64_t address : ops[op].events) {
        const Word& word = words.at(address);
        if (has_seen(core, word)) continue;
        stop("op '" + ops[op].name + "' passes its wait point, and nothing orders it after a core that saw " + word.name + " set");
    }
}

// The first store clears a control word; then block 0 has it.
void Machine::control_lands(const Core& core, uint64_t address) {
    Seen now{core.actor, core.clock[core.actor]};
    auto [known, fresh] = control.emplace(address, Stores{now, now});
    if (fresh) return;
    const Seen& last = known->second.last;
    if (settings.races && last.actor != core.actor && core.clock[last.actor] < last.at) {
        fail(core, "stores to a word of " + name_at(address) + ", and nothing orders it after the store of the " + actor_name(last.actor));
    } else if (core.block || core.sub_block) {
        fail(core, "stores to a word of " + name_at(address) + ", which belongs to block 0 once it is cleared");
    }
    known->second.last = now;
}

void Machine::word_lands(Core& core, uint64_t address, uint64_t value) {
    auto found = words.find(address);
    if (found == words.end()) return control_lands(core, address);
    Word& word = found->second;
    const Op& op = ops[word.ops[0]];
    uint64_t before = in_memory(address);
    std::string stores = "stores " + std::to_string(value) + " to " + word.name;
    std::string problem = touch_problem(*this, core, word);
    const Core* missing = nullptr;
    bool resets = value == 0 && (word.kind == WordKind::wait || word.kind == WordKind::lock);
    bool signals = value == (word.kind == WordKind::lock ? 2 : 1) && word.kind != WordKind::wait;
    if (!problem.empty()) {
    } else if (!resets && !signals) {
        problem = stores + ", which says nothing there";
    } else if (signals && word.kind != WordKind::go && is_under_way(core)) {  // weights are what no op stores
        problem = stores + " while its copies are still on their way";
    } else if (signals && word.stores++) {
        problem = stores + " for the second time";
    } else if (resets && word.resets++) {
        problem = "resets " + word.name + " for the second time";
    } else if (resets && (before != 1 || !has_seen(core, word))) {
        problem = "resets " + word.name + " before it has seen it set";
    } else if (resets && word.kind == WordKind::wait && !all_done(*this, core, word)) {
        problem = "resets " + word.name + " before it has run the ops that it holds back";
    } else if (word.kind == WordKind::tell && before != 0) {
        problem = stores + ", and the rank that waits for it has not taken the one before: it would be lost";
    } else if ((word.kind == WordKind::notify || word.kind == WordKind::tell) && settings.races) {
        for (uint32_t needed : word.ops) {
            bool known = ops[needed].blocks != kUnknown;
            if (known && knows(core, needed, missing)) continue;
            problem = stores + ", and nothing orders it after op '" + ops[needed].name + "'" +
                      (known ? " on the " + who(*missing) : "");
            break;
        }
    } else if (word.kind == WordKind::lock && signals && before != 0) {
        problem = stores + " while it is " + std::to_string(before);
    } else if (word.kind == WordKind::lock && resets && settings.races) {
        for (const auto& other : cores) {
            if (!runs_on(op.type, other->kind)) continue;
            bool known = std::any_of(word.seen.begin(), word.seen.end(), [&](const Seen& seen) {
                return seen.actor == other->actor && (other->index == core.index || core.clock[seen.actor] >= seen.at);
            });
            if (known) continue;
            problem = "resets " + word.name + ", and nothing orders it after the " + who(*other) + " saw it set";
            break;
        }
    } else if (word.kind == WordKind::go && core.ran[word.ops[0]]) {
        problem = stores + " after op '" + op.name + "'";
    }
    if (!problem.empty()) fail(core, problem);
}

// A line is written back as a whole. Where it holds another word, what others have stored there since would be lost.
void Machine::check_line(Core& core, uint64_t line, const CachedLine& cached) {
    auto size = uint64_t(settings.cache_line);
    for (uint64_t at = 0; at < size; at += kWordSize) {
        auto place = regions.upper_bound(line + at);
        if (place == regions.end() || place->second.begin > line + at) continue;
        if (cached.stored >> (at / kWordSize) & 1) {
            uint64_t value = 0;
            std::memcpy(&value, cached.bytes + at, kWordSize);
            word_lands(core, line + at, value);
        } else if (words.count(line + at) || !place->second.words || std::memcmp(cached.bytes + at, reinterpret_cast<const void*>(line + at), kWordSize) != 0) {
            fail(core, "writes back a cache line that also holds " + name_at(line + at) +
                           ": what others store there is lost. Words that different cores or agents store need a line each");
        }
    }
}

// Other cores and agents do not see a store that is still in the data cache of its core.
void Machine::check_told(const Core& core, const std::string& doing) {
    if (core.untold) stop(doing + " while its store to " + name_at(core.untold) + " is still in its data cache");
}

void Machine::check_words() {
    for (const auto& [address, word] : words) {
        bool stays = word.kind == WordKind::notify;
        uint64_t value = in_memory(address);
        std::string problem;
        if (word.kind != WordKind::wait && !word.stores) {
            problem = " was never set";
        } else if (word.kind == WordKind::tell) {  // the rank that waits for it resets it when it has come there
        } else if (value != (stays ? 1 : 0)) {
            problem = " is " + std::to_string(value) + " at the end, a second launch would go wrong";
        }
        if (!problem.empty()) error = word.name + problem;
        if (!error.empty()) return;
    }
}

// The host takes events that were sent, and sets none before a launch.
void Machine::check_words_found() {
    for (const auto& [address, word] : words) {
        uint64_t value = in_memory(address);
        if (value != 0) {
            error = word.name + " is " + std::to_string(value) + " at the begin: the launch before did not reset it";
            return;
        }
    }
}

}  // namespace emulator
