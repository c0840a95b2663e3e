// calls.cpp: sub-kernels as the entry calls them.
#include <algorithm>

#include "machine.h"

namespace emulator {

namespace {

constexpr uint64_t kCallCost = 16;
constexpr int kNoPair = 15, kArrives = 16;  // as in subkernel.h
enum Action { none, wait_class, signal_block, wait_block };

uint64_t config(int mode, int flag) { return 1u | uint64_t(mode) << 4 | uint64_t(flag) << 8; }

// One row per pair of classes, producer then consumer (0 cube, 1 vector, 2 both): wait for all of the own class, signal
// the other side of the block, wait for it.
struct Row {
    Action cube[3], vector[3];
};
constexpr Row kToVectors = {{wait_class, signal_block}, {wait_block}};
constexpr Row kToCube = {{wait_block}, {wait_class, signal_block}};
constexpr Row kRows[3][3] = {
    {{{wait_class}, {}}, kToVectors, kToVectors},
    {kToCube, {{}, {wait_class}}, kToCube},
    {{{wait_class, wait_block}, {wait_class, signal_block}},
     {{wait_class, signal_block}, {wait_class, wait_block}},
     {{wait_class, signal_block, wait_block}, {wait_class, signal_block, wait_block}}},
};

void follow(Machine& m, int producer, int consumer) {
    const Row& row = kRows[producer][consumer];
    const Settings& known = m.settings;
    bool cube = m.running->kind == Class::cube;
    for (Action action : cube ? row.cube : row.vector) {
        if (action == wait_class) m.wait(cube ? known.cube_flag : known.vector_flag);
        if (action == wait_block) m.wait(cube ? known.vectors_to_cube_flag : known.cube_to_vectors_flag);
        if (action == signal_block) {
            m.signal(cube ? kFixPipe : kOutPipe, config(2, cube ? known.cube_to_vectors_flag : known.vectors_to_cube_flag));
        }
    }
}

// Behind the transfers of this core.
void arrive(Machine& m) {
    bool cube = m.running->kind == Class::cube;
    m.signal(cube ? kFixPipe : kOutPipe, config(0, cube ? m.settings.cube_flag : m.settings.vector_flag));
}

}  // namespace

// The first op of this function that `belongs` accepts and that this core has not run; else one that it has run.
uint32_t Machine::find_op(const char* function, const std::function<bool(const Op&)>& belongs) {
    std::string key = std::string("\n") + function + "\n";
    uint32_t found = kNone;
    for (uint32_t i = 0; i < ops.size(); ++i) {
        if (ops[i].functions.find(key) == std::string::npos || !belongs(ops[i])) continue;
        if (found == kNone) found = i;
        if (!running->ran[i]) return i;  // ops without slots share an index: they run in order
    }
    return found;
}

void Machine::call(const char* function, int copy, uint64_t first_slot, void (*body)(uint64_t)) {
    uint32_t index = find_op(function, [&](const Op& op) { return op.first_slot == first_slot; });
    if (index == kNone) {
        stop(std::string("calls ") + function + " with first slot " + std::to_string(first_slot) +
             ", which is the first of no op that it belongs to");
    }
    running->function = function;
    begin_call(index, copy);
    body(first_slot);
    end_call(copy);
}

void Machine::call_with(const char* function, int copy, const uint64_t* pointers, int count, void (*body)(const uint64_t*)) {
    const auto* slots = reinterpret_cast<const uint64_t*>(settings.para_base);
    uint32_t index = find_op(function, [&](const Op& op) { return std::equal(pointers, pointers + count, slots + op.first_slot); });
    if (index == kNone) stop(std::string("calls ") + function + " with pointers that are those of no op that it belongs to");
    running->function = function;
    begin_call(index, copy);
    body(pointers);
    end_call(copy);
}

void Machine::begin_call(uint32_t index, int copy) {
    Core& core = *running;
    check_issue(core, index, copy);
    if (!core.drained) {
        stop("runs op '" + ops[index].name + "' before its pipes are drained: '" + ops[core.last_op].name + "' may still use its buffers");
    }
    core.op = index;
    core.drained = false;
    core.barriers = 0;
    core.waited = core.wait_pair < 0;
    core.has_set = !core.arrives;
    ++shared->progress;
    step(kCallCost);
    note(What::op_begin, uint32_t(copy), uint64_t(sk_emu_op_block()));
}

void Machine::end_call(int copy) {
    Core& core = *running;
    Op& op = ops[core.op];
    step(1);
    if (!core.waited) stop("op '" + op.name + "' never made the wait that it is said to make inside");
    if (!core.has_set) stop("op '" + op.name + "' never made the signal that it is said to make inside");
    has_stored(core, core.op);
    note(What::op_end, uint32_t(copy), core.barriers);
    core.last_op = core.op;
    core.op = kNone;
    core.told = false;
    core.context_blocks = 0, core.wait_pair = -1, core.arrives = false, core.feed_word = 0;
    tell(core);
}

// Cores are threads of one process: a variable that each core has for itself is set whenever one goes on.
void Machine::tell(const Core& core) {
    auto kind = size_t(core.kind);
    if (early_start[kind]) *early_start[kind] = uint64_t(core.wait_pair < 0 ? kNoPair : core.wait_pair) | (core.arrives ? kArrives : 0);
    if (feed[kind]) *feed[kind] = core.feed_word;
}

// On the chip, what was said for an earlier op would count.
void Machine::check_told_op(const char* asks) {
    if (running->op == kNone) stop(std::string(asks) + " outside an op");
    if (!running->told) stop(std::string(asks) + ", and the entry has told this op nothing");
}

void Machine::reached(int point) {
    Core& core = *running;
    check_told_op("subkernel.h");
    if (point == SK_REACHED_WAIT) {
        if (!core.waited) {
            check_waits(core, core.op);
            check_needs(core, core.op, false);
        }
        core.waited = true;
        note(What::op_waited);
    } else if (point == SK_REACHED_SET) {
        has_stored(core, core.op);
        core.has_set = true;
        note(What::op_set);
    } else {
        ++core.barriers;
        note(What::sync_all, uint32_t(core.barriers));
    }
}

void Machine::wait_previous() {
    Core& core = *running;
    check_told_op("wait_previous");
    if (!core.waited) {  // else the entry has waited
        core.waited = true;
        follow(*this, core.wait_pair >> 2, core.wait_pair & 3);
        check_waits(core, core.op);
        check_needs(core, core.op, false);
    }
    note(What::op_waited);
}

void Machine::set_next() {
    Core& core = *running;
    check_told_op("set_next");
    note(What::op_set);
    has_stored(core, core.op);
    if (core.has_set) return;
    core.has_set = true;
    arrive(*this);
}

void Machine::sync_all() {
    Core& core = *running;
    check_told_op("sync_all");
    ++core.barriers;
    note(What::sync_all, uint32_t(core.barriers));
    land(core, -1);
    core.undrained = false;
    Type type = ops[core.op].type;
    bool both = on_cubes(type) && on_vectors(type);
    if (core.feed_word) {  // as subkernel.h: number, kind, valid
        clean(core.feed_word, false);
        uint64_t number = (load(core.feed_word, 8) + 1) & UINT32_MAX;
        store(core.feed_word, number | uint64_t(both) << 32 | uint64_t(1) << 62, 8);
        clean(core.feed_word, false);
    }
    if (both && core.kind == Class::vector) {  // vectors meet through their cubes
        signal(kOutPipe, config(2, settings.vectors_to_cube_flag));
        wait(settings.cube_to_vectors_flag);
        return;
    }
    if (both) wait(settings.vectors_to_cube_flag);
    arrive(*this);
    wait(core.kind == Class::cube ? settings.cube_flag : settings.vector_flag);
    if (both) signal(kFixPipe, config(2, settings.cube_to_vectors_flag));
}

}  // namespace emulator

using emulator::Class;
using emulator::machine;
using emulator::Type;

extern "C" {

void sk_emu_call(const char* function, int copy, uint64_t first_slot, void (*body)(uint64_t)) {
    machine->call(function, copy, first_slot, body);
}

void sk_emu_call_with(const char* function, int copy, const uint64_t* pointers, int count, void (*body)(const uint64_t*)) {
    machine->call_with(function, copy, pointers, count, body);
}

int64_t sk_emu_op_block(void) {
    const auto& core = *machine->running;
    if (core.op == emulator::kNone) machine->stop("asks for its block outside an op");
    return machine->block_of(machine->ops[core.op], core);
}

int64_t sk_emu_op_blocks(void) {
    const auto& core = *machine->running;
    if (core.op == emulator::kNone) machine->stop("asks for its block count outside an op");
    return machine->ops[core.op].blocks;
}

int64_t sk_emu_op_sub_block(void) {
    const auto& core = *machine->running;
    return core.op != emulator::kNone && machine->ops[core.op].type == Type::mix_1_2 ? core.sub_block : 0;
}

int64_t sk_emu_op_sub_blocks(void) {
    const auto& core = *machine->running;
    return core.op != emulator::kNone && machine->ops[core.op].type == Type::mix_1_2 ? machine->settings.vectors_per_block : 1;
}

void sk_emu_call_context(uint32_t blocks, int32_t wait_pair, int32_t arrives, uint64_t feed_word) {
    auto& core = *machine->running;
    if (wait_pair < -1 || wait_pair > 10 || (wait_pair >= 0 && (wait_pair & 3) == 3)) machine->stop("unknown pair code " + std::to_string(wait_pair));
    if (arrives != 0 && arrives != 1) machine->stop("a sub-kernel arrives itself or does not: 1 or 0, not " + std::to_string(arrives));
    core.told = true;
    core.context_blocks = blocks, core.wait_pair = wait_pair, core.arrives = arrives != 0, core.feed_word = feed_word;
    machine->tell(core);
}
void sk_emu_dump_context(uint64_t address) { machine->running->dump = address; }
uint64_t sk_emu_dump(void) { return machine->running->dump; }
void sk_emu_reached(int point) { machine->reached(point); }
void sk_emu_sync_all(void) { machine->sync_all(); }
void sk_emu_wait_previous(void) { machine->wait_previous(); }
void sk_emu_set_next(void) { machine->set_next(); }
}
