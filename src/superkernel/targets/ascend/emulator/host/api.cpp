// api.cpp: what Python calls to set up and run a launch, and the primitives of the emitted code.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "machine.h"
#include "watchdog.h"

using emulator::Class;
using emulator::Core;
using emulator::Machine;
using emulator::machine;
using emulator::Settings;
using emulator::What;

namespace {

constexpr int kAllDestinations = 0, kOutside = 2;  // of dcci; as in kernel_operator.h
constexpr const char* kTypes[] = {"AIV_ONLY", "AIC_ONLY", "MIX_AIV_1_0", "MIX_AIC_1_0", "MIX_AIC_1_1", "MIX_AIC_1_2"};

}  // namespace

struct OpDescription {  // as in library.py
    const char *name, *functions;
    uint64_t first_slot;
    int64_t blocks, stream, copies;
    int32_t type, dynamic, preloaded;
};

extern "C" {

Machine* sk_emu_new(const Settings* settings) {
    auto* made = new Machine;
    made->settings = *settings;
    made->shared = std::make_shared<emulator::SharedState>();
    made->shared->chips.push_back(made);
    made->random.seed(settings->seed);
    auto count = size_t(settings->cubes + settings->vectors);
    std::vector<int64_t> ids(count);
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = count; settings->shuffle && i > 1; --i) std::swap(ids[i - 1], ids[made->random.below(i)]);
    for (size_t i = 0; i < count; ++i) {
        auto core = std::make_unique<Core>();
        core->index = uint32_t(i);
        bool cube = int32_t(i) < settings->cubes;
        auto vector = int64_t(i) - settings->cubes;
        core->kind = cube ? Class::cube : Class::vector;
        core->block = cube ? int64_t(i) : vector / settings->vectors_per_block;
        core->sub_block = cube ? 0 : vector % settings->vectors_per_block;
        core->core_id = ids[i];
        made->cores.push_back(std::move(core));
    }
    return made;
}

void sk_emu_region(Machine* m, uint64_t address, uint64_t bytes, const char* name, int words) {
    m->regions[address + bytes] = {address, address + bytes, name, words != 0};
    m->region_ends.push_back(address + bytes);
}

void sk_emu_op(Machine* m, const OpDescription* given) {
    emulator::Op op;
    op.name = given->name, op.functions = given->functions, op.first_slot = given->first_slot;
    op.type = emulator::Type(given->type), op.blocks = given->blocks, op.stream = given->stream, op.copies = given->copies;
    op.dynamic = given->dynamic != 0, op.preloaded = given->preloaded != 0;
    op.stored.assign(m->cores.size(), 0);
    m->ops.push_back(std::move(op));
}

void sk_emu_need(Machine* m, uint32_t producer, uint32_t consumer, int block_local, int before_wait) {
    m->ops[consumer].needs.push_back({producer, block_local != 0, before_wait != 0});
}

// A tiling is decided: the op has these blocks and runs one of these functions.
void sk_emu_decided(Machine* m, uint32_t op, int64_t blocks, const char* functions) {
    m->ops[op].blocks = blocks;
    m->ops[op].functions = functions;
}

void sk_emu_word(Machine* m, uint64_t address, const char* name, int32_t kind) {
    emulator::Word& word = m->words[address];
    word.name = name, word.kind = emulator::WordKind(kind);
}

void sk_emu_word_op(Machine* m, uint64_t address, uint32_t op) {
    emulator::Word& word = m->words.at(address);
    word.ops.push_back(op);
    if (word.kind == emulator::WordKind::wait) m->ops[op].events.push_back(address);
}

void sk_emu_agent(Machine* m, const char* name, uint64_t trigger, uint64_t value, uint64_t delay, int answers) {
    emulator::Agent agent;
    agent.name = name, agent.trigger = trigger, agent.value = value, agent.delay = delay, agent.answers = answers != 0;
    m->agents.push_back(std::move(agent));
}

// What an agent does when it acts; 0: it must not have.
int sk_emu_agent_reads(Machine* m, int agent, uint64_t address, uint64_t bytes) { return m->agent_reads(agent, address, bytes); }
int sk_emu_agent_writes(Machine* m, int agent, uint64_t address, uint64_t value) {
    return m->agent_writes(agent, address, value);
}

void sk_emu_link(Machine* m, uint64_t device, uint64_t host, int to_host) { m->links.push_back({device, host, to_host != 0}); }

void sk_emu_functions(Machine* m, const SkFunction* table, int64_t count) {
    for (int64_t i = 0; i < count; ++i) m->functions[table[i].address] = table[i].name;
}

// A launch after another one of the same kernel: flags are as that one left them.
void sk_emu_follow(Machine* m, const Machine* before) {
    m->follows = true;
    m->arrived = before->arrived;
    for (size_t i = 0; i < m->cores.size(); ++i) {
        for (int flag = 0; flag < emulator::kFlags; ++flag) m->cores[i]->flags[flag] = before->cores[i]->flags[flag];
    }
}

// Where sub-kernels print: one part for each core.
void sk_emu_dump_area(Machine* m, uint64_t address, uint64_t bytes_per_core) {
    m->dump_area = address, m->dump_part = bytes_per_core;
}

// The variables of subkernel.h for one class of cores; null: no sub-kernel of it asks.
void sk_emu_told(Machine* m, int kind, uint64_t* early_start, uint64_t* feed) {
    m->early_start[kind] = early_start, m->feed[kind] = feed;
}

// The last step before a launch: all agents are known, and a rank has joined the others.
void sk_emu_enter(Machine* m, void (*cube)(), void (*vector)(), int (*agent_acts)(int)) {
    m->entry[0] = cube, m->entry[1] = vector;
    m->agent_acts = agent_acts;
    m->functions[reinterpret_cast<const void*>(cube)] = m->functions[reinterpret_cast<const void*>(vector)] = "the entry";
    size_t actors = m->shared->actors = std::max(m->shared->actors, m->cores.size() + m->agents.size());
    uint32_t place = m->first_actor;
    for (auto& core : m->cores) {
        core->ran.assign(m->ops.size(), false);
        core->actor = place;
        core->clock.resize(actors);
        core->clock.advance(place++);
    }
    for (auto& agent : m->agents) {
        agent.clock.resize(actors);
        agent.clock.advance(place++);
    }
}

// 0: it ran to its end
int sk_emu_run(Machine* m) {
    machine = m->shared->active = m;
    {
        emulator::Watchdog watchdog(*m->shared, m->settings);
        m->run();
    }
    machine = nullptr;
    return m->error.empty() ? 0 : 1;
}

const char* sk_emu_error(Machine* m) { return m->error.c_str(); }
const emulator::Record* sk_emu_records(Machine* m, uint64_t* count) {
    *count = m->records.size();
    return m->records.data();
}
const char* sk_emu_function_name(Machine* m, uint32_t number) { return m->function_names[number].c_str(); }
void sk_emu_free(Machine* m) { delete m; }

// the primitives

int64_t sk_emu_block_idx(void) { return machine->running->block; }
int64_t sk_emu_sub_block(void) { return machine->running->sub_block; }
int64_t sk_emu_sub_block_num(void) {
    return machine->running->kind == Class::cube ? 1 : machine->settings.vectors_per_block;
}
int64_t sk_emu_block_num(void) {
    const Settings& s = machine->settings;
    return s.cubes ? s.cubes : s.vectors / s.vectors_per_block;
}
int64_t sk_emu_core_id(void) { return machine->running->core_id; }
int sk_emu_is_cube(void) { return machine->running->kind == Class::cube; }
uint64_t sk_emu_para_base(void) { return machine->settings.para_base; }

void sk_emu_task_type(int type, int line) {
    Core& core = *machine->running;
    core.line = line;
    std::string said = std::string("KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_") + kTypes[type] + ")";
    if (type != machine->settings.launch_type) {
        machine->stop(said + ", but the launch is KERNEL_TYPE_" + kTypes[machine->settings.launch_type]);
    }
    if (core.has_type) machine->stop(said + " for the second time");
    core.has_type = true;
}
void sk_emu_ffts_base(uint64_t address, int line) {
    Core& core = *machine->running;
    core.line = line;
    if (address != machine->settings.sync_base) {
        machine->stop("set_ffts_base_addr with an address in " + machine->name_at(address) + "; slot 0 holds the sync base");
    }
    if (core.has_ffts_base) machine->stop("set_ffts_base_addr for the second time");
    core.has_ffts_base = true;
    machine->step(1);
}
void sk_emu_signal(int pipe, uint64_t config, int line) {
    machine->running->line = line;
    if (!machine->running->has_ffts_base) machine->stop("ffts_cross_core_sync before set_ffts_base_addr");
    machine->signal(pipe, config);
}
void sk_emu_wait(int64_t flag, int line) {
    machine->running->line = line;
    machine->wait(flag);
}
uint64_t sk_emu_load(uint64_t address, int bytes, int line) {
    if (line) machine->running->line = line;
    return machine->load(address, bytes);
}
void sk_emu_store(uint64_t address, uint64_t value, int bytes, int line) {
    if (line) {
        machine->running->line = line;
        machine->note(What::store, uint32_t(value), address);
    }
    machine->store(address, value, bytes);
}
void sk_emu_copy_in(void* local, uint64_t address, uint64_t bytes) { machine->copy_in(local, address, bytes); }
void sk_emu_copy_out(uint64_t address, const void* local, uint64_t bytes) { machine->copy_out(address, local, bytes); }
void sk_emu_dcci(uint64_t address, int entire, int destination, int line) {
    if (line) machine->running->line = line;
    if (destination != kOutside && destination != kAllDestinations) {
        machine->stop("dcci with destination " + std::to_string(destination) + " cleans nothing in global memory: use CACHELINE_OUT");
    }
    if (entire) machine->note(What::clean, 1);
    machine->clean(address, entire != 0);
}
void sk_emu_pipe_barrier(int pipe, int line) {
    if (line) machine->running->line = line;
    if (pipe == 0) machine->stop("pipe_barrier(PIPE_S): the scalar unit has no queue to wait for");
    bool cube = machine->running->kind == Class::cube;
    machine->note(What::drain, uint32_t(pipe));
    machine->land(*machine->running, pipe == emulator::kAllPipes ? -1 : pipe);
    if (pipe == emulator::kAllPipes || pipe == (cube ? emulator::kFixPipe : emulator::kOutPipe)) {
        machine->running->undrained = false;
        machine->settle(*machine->running);
    }
    if (pipe == emulator::kAllPipes && machine->running->op == emulator::kNone) machine->running->drained = true;
    machine->step(2);
}
void sk_emu_preload(const void* function, int64_t lines, int line) {
    machine->running->line = line;
    auto found = machine->functions.find(function);
    if (found == machine->functions.end()) machine->stop("preloads something that is neither a sub-kernel nor the entry");
    const std::string& name = found->second;
    bool cube = machine->running->kind == Class::cube;
    int64_t most = cube ? machine->settings.preload_lines_cube : machine->settings.preload_lines_vector;
    if (lines < 1 || lines > most) {
        machine->stop("preloads " + std::to_string(lines) + " lines of " + name + "; a " + (cube ? "cube" : "vector") +
                      " core takes 1 to " + std::to_string(most));
    }
    machine->running->preloaded.insert(name);
    auto [place, fresh] = machine->function_numbers.emplace(name, uint32_t(machine->function_names.size()));
    if (fresh) machine->function_names.push_back(name);
    machine->note(What::preload, place->second, uint64_t(lines));
    machine->step(1);
}
uint64_t sk_emu_clock(void) {
    machine->step(1);
    return machine->running->time;
}
void sk_emu_work(uint64_t ticks) { machine->step(ticks); }
void sk_emu_trap(int line) {
    machine->running->line = line;
    machine->stop("trap");
}
void sk_emu_fail(const char* text) { machine->stop(text); }
}
