// api.cpp: what Python calls to set up and run a launch, and the primitives of the emitted code.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "machine.h"

using emulator::Class;
using emulator::Core;
using emulator::Machine;
using emulator::machine;
using emulator::Settings;
using emulator::What;

namespace {

// An endless loop inside a sub-kernel takes no steps and cannot be stopped from outside: report it and end the process.
class Watchdog {
public:
    explicit Watchdog(Machine& m) : machine_(m), thread_([this] { watch(); }) {}
    ~Watchdog() {
        over_ = true;
        thread_.join();
    }

private:
    void watch() {
        // counted in slices, so that a process that was stopped for a while is not mistaken for one that hangs
        constexpr double slice_s = 0.01;
        double idle_s = 0;
        uint64_t seen = machine_.steps;
        while (!over_) {
            std::this_thread::sleep_for(std::chrono::duration<double>(slice_s));
            idle_s = seen == machine_.steps ? idle_s + slice_s : 0;
            seen = machine_.steps;
            if (idle_s < machine_.settings.watchdog_s) continue;
            Core* core = machine_.running;
            std::string where = core ? machine_.who(*core) + ", " + machine_.where(*core) : std::string("an agent outside");
            std::string text = "superkernel: the emulated launch makes no progress: " + where + "\n";
            ssize_t written = write(2, text.data(), text.size());
            if (machine_.settings.watchdog_exits != 0) _exit(written < 0 ? 71 : 70);
            idle_s = 0;  // the next report comes after another period
        }
    }

    Machine& machine_;
    std::atomic<bool> over_{false};
    std::thread thread_;
};

}  // namespace

extern "C" {

Machine* sk_emu_new(const Settings* settings) {
    auto* made = new Machine;
    made->settings = *settings;
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
        core->clock.resize(count);
        core->clock.advance(i);
        made->cores.push_back(std::move(core));
    }
    return made;
}

void sk_emu_region(Machine* m, uint64_t address, uint64_t bytes, const char* name, int words) {
    m->regions[address + bytes] = {address, address + bytes, name, words != 0};
}

void sk_emu_op(Machine* m, const char* name, const char* functions, uint64_t first_slot, int32_t type, int64_t blocks) {
    m->ops.push_back({name, functions, first_slot, emulator::Type(type), blocks});
}

void sk_emu_agent(Machine* m, uint64_t trigger, uint64_t value, uint64_t delay) {
    emulator::Agent agent;
    agent.trigger = trigger, agent.value = value, agent.delay = delay;
    m->agents.push_back(agent);
}

void sk_emu_link(Machine* m, uint64_t device, uint64_t host, int to_host) { m->links.push_back({device, host, to_host != 0}); }
void sk_emu_write_word(Machine* m, uint64_t address, uint64_t value) { m->write_word(address, value); }

void sk_emu_functions(Machine* m, const SkFunction* table, int64_t count) {
    for (int64_t i = 0; i < count; ++i) m->functions[table[i].address] = table[i].name;
}

// 0: it ran to its end
int sk_emu_run(Machine* m, void (*cube)(), void (*vector)(), int (*agent_acts)(int)) {
    machine = m;
    m->entry[0] = cube, m->entry[1] = vector;
    m->agent_acts = agent_acts;
    for (auto& core : m->cores) core->ran.assign(m->ops.size(), false);
    {
        Watchdog watchdog(*m);
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

void sk_emu_ffts_base(uint64_t address) {
    machine->region(address, 8, "the sync base");
    machine->running->has_ffts_base = true;
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
        machine->note(What::store, 0, address);
    }
    machine->store(address, value, bytes);
}
void sk_emu_copy_in(void* local, uint64_t address, uint64_t bytes) { machine->copy_in(local, address, bytes); }
void sk_emu_copy_out(uint64_t address, const void* local, uint64_t bytes) { machine->copy_out(address, local, bytes); }
void sk_emu_dcci(uint64_t address, int entire, int line) {
    if (line) machine->running->line = line;
    if (entire) machine->note(What::clean, 1);
    machine->clean(address, entire != 0);
}
void sk_emu_pipe_barrier(int pipe, int line) {
    if (line) machine->running->line = line;
    machine->land(*machine->running, pipe == emulator::kAllPipes ? -1 : pipe);
    machine->step(2);
}
void sk_emu_preload(const void* function, int64_t lines, int line) {
    machine->running->line = line;
    auto found = machine->functions.find(function);
    std::string name = found == machine->functions.end() ? "" : found->second;
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
