// api.cpp: the functions that library.py calls.
#include <algorithm>

#include "machine.h"

namespace ptx {

std::vector<HandlerEntry> all_handlers() {
    std::vector<HandlerEntry> table;
    for (auto add : {add_integer, add_floating, add_half, add_conversions, add_memory, add_bulk, add_warp, add_matrix, add_control}) add(table);
    return table;
}

}  // namespace ptx

using namespace ptx;

extern "C" {

// The name of handler `number`; null behind the last.
const char* sk_ptx_handler(uint32_t number) {
    static const std::vector<HandlerEntry> table = all_handlers();
    return number < table.size() ? table[number].name : nullptr;
}

Machine* sk_ptx_new(const Settings* settings) {
    auto* machine = new Machine;
    machine->settings = *settings;
    machine->shared = std::make_shared<SharedState>();
    machine->shared->devices.push_back(machine);
    machine->shared->warps = machine->places() * machine->warps_of_block();
    return machine;
}

void sk_ptx_program(Machine* m, const Encoded* encoded, uint64_t count, const uint32_t* targets, uint64_t target_count) {
    static const std::vector<HandlerEntry> table = all_handlers();
    m->program.resize(count);
    for (uint64_t k = 0; k < count; ++k) {
        const Encoded& from = encoded[k];
        Instruction& to = m->program[k];
        to.function = table[from.handler].function;
        to.immediate = from.immediate;
        to.line = from.line, to.flags = from.flags, to.guard = from.guard, to.detail = from.detail, to.count = from.count;
        std::copy(from.operands, from.operands + kOperands, to.operands);
    }
    m->targets.assign(targets, targets + target_count);
}

void sk_ptx_registers(Machine* m, const uint8_t* image, uint64_t bytes, const Special* specials, uint64_t count) {
    m->image.assign(image, image + bytes);
    m->specials.assign(specials, specials + count);
}

void sk_ptx_banks(Machine* m, const uint8_t* constants, uint64_t constant_bytes, const uint8_t* params, uint64_t param_bytes) {
    m->constant_bank.assign(constants, constants + constant_bytes);
    m->params.assign(params, params + param_bytes);
}

void sk_ptx_range(Machine* m, uint64_t begin, uint64_t bytes, uint8_t* host, const char* name, int tracked, int readable, int writable, int outside, int late, uint32_t part, int shared) {
    auto range = std::make_unique<Range>();
    range->begin = begin, range->end = begin + bytes, range->host = host, range->name = name;
    range->tracked = tracked, range->readable = readable, range->writable = writable, range->outside = outside, range->late = late, range->part = part;
    range->shared = shared;
    if (shared) {
        auto& shadow = m->shared->shadows[begin];
        if (!shadow) shadow = std::make_shared<Shadow>();
        range->shadow = shadow;
    }
    auto after = std::upper_bound(m->ranges.begin(), m->ranges.end(), begin, [](uint64_t a, const auto& r) { return a < r->begin; });
    m->ranges.insert(after, std::move(range));
}

void sk_ptx_label(Machine* m, uint64_t begin, uint64_t end, const char* text) { m->labels.push_back({begin, end, text}); }

void sk_ptx_ops(Machine* m, const char* const* names, uint64_t count) { m->op_names.assign(names, names + count); }

// The ops that take staged weights out of the ring.
void sk_ptx_staged(Machine* m, const uint32_t* ops, uint64_t count) {
    m->takes_staged.assign(m->op_names.size(), false);
    for (uint64_t k = 0; k < count; ++k) m->takes_staged.at(ops[k]) = true;
}

// The op of each task, by its SM and address; -1: none.
void sk_ptx_tasks(Machine* m, const uint64_t* places, const int32_t* ops, uint64_t count) {
    for (uint64_t k = 0; k < count; ++k) m->op_of_task[{places[2 * k], places[2 * k + 1]}] = uint32_t(ops[k] + 1);
}

int sk_ptx_run(Machine* m, uint64_t most_steps) { return m->run(most_steps); }
const char* sk_ptx_error(Machine* m) { return m->error.c_str(); }
uint64_t sk_ptx_steps(Machine* m) { return m->steps; }
const Record* sk_ptx_records(Machine* m, uint64_t* count) {
    *count = m->records.size();
    return m->records.data();
}
void sk_ptx_free(Machine* m) { delete m; }

// Devices that run together: they share memory. Each joins before the first of them runs, and before it has ranges.
// `before`: the launch of the same device before this one; null: it is the first.
void* sk_ptx_devices_new(void) { return new std::shared_ptr<SharedState>(std::make_shared<SharedState>()); }
void sk_ptx_devices_free(void* devices) { delete static_cast<std::shared_ptr<SharedState>*>(devices); }
void sk_ptx_devices_join(void* devices, Machine* m, uint32_t device, const char* name, const Machine* before) {
    SharedState& shared = **static_cast<std::shared_ptr<SharedState>*>(devices);
    m->shared = *static_cast<std::shared_ptr<SharedState>*>(devices);
    m->device = device;
    m->rank = name;
    if (before) {
        m->first_actor = before->first_actor;
        for (const Warp* warp : before->warps) m->known.join(warp->clock);
    } else {
        m->first_actor = uint32_t(shared.warps);
        shared.warps += m->places() * m->warps_of_block();
        shared.devices.resize(std::max<size_t>(shared.devices.size(), device + 1));
    }
    shared.devices[device] = m;
}
uint64_t sk_ptx_progress(const Machine* m) { return m->shared->progress; }

// What each warp does or waits for; it exists until the machine is asked again.
const char* sk_ptx_standing(Machine* m, const char* why) {
    m->error = m->standing(why);
    return m->error.c_str();
}

}
