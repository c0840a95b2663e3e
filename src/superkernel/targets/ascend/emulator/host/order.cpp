// order.cpp: what every launch must keep, whatever its timing: who runs which block, in which order, after what.
#include <algorithm>

#include "machine.h"

namespace emulator {

int64_t Machine::block_of(const Op& op, const Core& core) const {
    bool spread = op.type == Type::vector_only || op.type == Type::mix_vector;
    if (core.kind == Class::cube || !spread || !settings.cubes) return core.block;
    return core.block * settings.vectors_per_block + core.sub_block;
}

bool Machine::has_block(const Op& op, const Core& core) const {
    if (core.kind == Class::cube ? !on_cubes(op.type) : !on_vectors(op.type)) return false;
    if (op.type == Type::mix_1_1 && core.sub_block) return false;
    return block_of(op, core) < op.blocks;
}

void Machine::has_stored(Core& core, uint32_t op) {
    if (ops[op].stored[core.index] || std::count(core.unsettled.begin(), core.unsettled.end(), op)) return;
    core.unsettled.push_back(op);
    if (!core.undrained) settle(core);
}

void Machine::settle(Core& core) {
    for (uint32_t op : core.unsettled) ops[op].stored[core.index] = core.clock[core.actor];
    core.unsettled.clear();
}

// By what the core has learned from flags and words, not by when it happened.
bool Machine::knows(const Core& core, uint32_t op, const Core*& missing) const {
    const Op& producer = ops[op];
    for (const auto& other : cores) {
        if (!has_block(producer, *other)) continue;
        uint32_t at = producer.stored[other->index];
        if (at && (other->index == core.index || core.clock[other->actor] >= at)) continue;
        missing = other.get();
        return false;
    }
    return true;
}

// P2 and P5: no block passes its wait point before what its op needs has been stored.
void Machine::check_needs(const Core& core, uint32_t op, bool before_wait) {
    const Op& consumer = ops[op];
    if (!settings.races) return;
    for (const Need& need : consumer.needs) {
        if (before_wait && !need.before_wait) continue;
        const Op& producer = ops[need.producer];
        std::string passed = "op '" + consumer.name + "' " + (before_wait ? "begins" : "passes its wait point");
        if (producer.blocks == kUnknown) stop(passed + " before the tiling of op '" + producer.name + "' is known");
        const Core* missing = nullptr;
        if (knows(core, need.producer, missing)) continue;
        if (need.block_local) {
            auto ordered = [&](const auto& other) {
                if (!has_block(producer, *other) || block_of(producer, *other) != block_of(consumer, core)) return true;
                uint32_t at = producer.stored[other->index];
                return at && (other->index == core.index || core.clock[other->actor] >= at);
            };
            if (std::all_of(cores.begin(), cores.end(), ordered)) continue;
        }
        stop(passed + ", and nothing orders it after op '" + producer.name + "' on the " + who(*missing));
    }
}

// P1, P3 and P10: a call on a core that has this block of the op, of the right copy, in the order of its stream.
void Machine::check_issue(Core& core, uint32_t index, int copy) {
    const Op& op = ops[index];
    std::string called = "runs op '" + op.name + "'";
    if (core.ran[index]) stop(called + " twice");
    core.ran[index] = true;
    if (core.kind == Class::cube ? !on_cubes(op.type) : !on_vectors(op.type)) stop(called + ", which is of the other class");
    if (op.type == Type::mix_1_1 && core.sub_block) stop(called + " on a second vector core; a 1:1 op has one per block");
    if (op.blocks == kUnknown) stop(called + " before its tiling is known");
    if (!core.has_ffts_base) stop(called + " before set_ffts_base_addr");
    if (dump_area && core.dump != dump_area + dump_part * core.index) stop(called + " before its part of the dump area is prepared");
    if (block_of(op, core) >= op.blocks) {
        stop(called + " as block " + std::to_string(block_of(op, core)) + " of " + std::to_string(op.blocks));
    }
    if ((core.context_blocks || op.dynamic) && int64_t(core.context_blocks) != op.blocks) {
        stop(called + " and is told that it has " + std::to_string(core.context_blocks) + " blocks; it has " + std::to_string(op.blocks));
    }
    if (copy != core.core_id % op.copies) {
        stop(called + " as copy " + std::to_string(copy) + "; core " + std::to_string(core.core_id) + " has copy " +
             std::to_string(core.core_id % op.copies) + " of " + std::to_string(op.copies));
    }
    auto [last, first] = core.last_of_stream.emplace(op.stream, index);
    if (!first && last->second > index) stop(called + " after op '" + ops[last->second].name + "', which follows it in its stream");
    last->second = index;
    // what was called last is still there; other code may have taken the place of what was called before
    if (op.preloaded && core.last_function != core.function && !core.preloaded.count(core.function)) {
        stop(called + " without having preloaded " + core.function);
    }
    core.preloaded.erase(core.function);
    core.last_function = core.function;
    check_told(core, "calls op '" + op.name + "'");
    bool waits = core.wait_pair >= 0;
    int of_class = on_cubes(op.type) ? (on_vectors(op.type) ? 2 : 0) : 1;
    if (waits && (core.wait_pair & 3) != of_class) {
        stop(called + " and tells it to wait by pair code " + std::to_string(core.wait_pair) + ", which is for ops of another class");
    }
    if (!waits) check_waits(core, index);
    check_needs(core, index, waits);
}

void Machine::check_blocks() {
    for (const Op& op : ops) {
        if (op.blocks == kUnknown) {
            error = "the tiling of op '" + op.name + "' was never asked for";
            return;
        }
        std::string missing;
        int count = 0;
        for (const auto& core : cores) {
            if (!has_block(op, *core) || core->ran[size_t(&op - ops.data())]) continue;
            if (++count <= 4) missing += (count > 1 ? ", " : "") + who(*core);
        }
        if (!count) continue;
        error = "op '" + op.name + "' did not run on " + std::to_string(count) + " of the cores that have a block of it: " +
                missing + (count > 4 ? ", ..." : "");
        return;
    }
    for (const auto& core : cores) {
        std::string problem = !core->has_type        ? "the entry never says KERNEL_TASK_TYPE_DEFAULT"
                              : !core->has_ffts_base ? "the entry never calls set_ffts_base_addr"
                                                     : "";
        if (dump_area && problem.empty() && core->dump != dump_area + dump_part * core->index) {
            problem = "the entry gave it no part of the dump area, or another one's";
        }
        if (settings.preload_entry && problem.empty() && !core->preloaded.count("the entry")) {
            problem = "the entry never preloads its own code";
        }
        if (problem.empty()) continue;
        error = who(*core) + ": " + problem;
        return;
    }
}

}  // namespace emulator
