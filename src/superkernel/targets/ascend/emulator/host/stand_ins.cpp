// stand_ins.cpp: sub-kernels that store numbers derived from all that they read. What they must store is computed a
// second time in stand_in_reference.py, op after op.
//
// A worker is a core of the op. It reads its inputs and the footprints of the ops that must have come before, and
// stores its chunk of every output and its word of its own footprint.
#include <utility>

#include "machine.h"

namespace emulator {

namespace {

constexpr uint64_t kFold = 0x9E3779B97F4A7C15u, kParameter = 0xD1B54A32D192ED03u, kWord = 0x8CB92BA72F3D8DD7u;
constexpr uint64_t kFootprint = 0xABC98388FB8FAC03u, kMeeting = 0x2545F4914F6CDD1Du;
constexpr uint64_t kWordBytes = 4;

uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
uint64_t absorb(uint64_t digest, uint64_t value) { return mix(digest * kFold + value); }
uint32_t stored(uint64_t digest) { return uint32_t(mix(digest) >> 32); }

struct Range {
    uint64_t begin, end;  // words
};

Range cut(Range whole, uint64_t piece, uint64_t pieces, uint64_t grain) {
    uint64_t grains = (whole.end - whole.begin) / grain;
    return {whole.begin + grains * piece / pieces * grain, whole.begin + grains * (piece + 1) / pieces * grain};
}

class Worker {
public:
    Worker(Machine& m, const StandIn& work, uint64_t first_slot, const uint64_t* pointers)
        : m_(m), work_(work), slots_(m.settings.para_base + 8 * first_slot), pointers_(pointers) {
        const Core& core = *m.running;
        bool alone = work.workers_per_block == 1 || core.kind == Class::cube;
        place_ = uint64_t(alone ? 0 : 1 + sk_emu_op_sub_block());
        block_ = uint64_t(sk_emu_op_block());
        blocks_ = uint64_t(sk_emu_op_blocks());
        number_ = block_ * uint64_t(work.workers_per_block) + place_;
        digest_ = absorb(absorb(absorb(absorb(0, core.op), work.keys.at(core.function)), block_), number_);
    }

    void run() {
        m_.step(1 + m_.random.below(24));
        if (work_.waits) m_.wait_previous();
        for (const Touch& touch : work_.touches) read(touch);
        for (const Follow& follow : work_.follows) {
            Range range = follow.own ? Range{number_, number_ + 1} : Range{0, follow.words};
            digest_ = absorb(digest_, fold(follow.address, range, false));
        }
        for (uint32_t barrier = 0; barrier < work_.barriers; ++barrier) meet(barrier);
        for (const Touch& touch : work_.touches) write(touch);
        uint32_t left = stored(digest_ + kFootprint);
        m_.copy_out(work_.footprint + kWordBytes * number_, &left, kWordBytes);
        if (work_.always_sets) m_.running->has_set = false;
        if (work_.sets) m_.set_next();
        m_.step(1 + m_.random.below(24));
    }

private:
    uint64_t slot(const Touch& touch) { return pointers_ ? pointers_[touch.slot] : m_.load(slots_ + 8 * touch.slot, 8); }

    Range part(const Touch& touch) const {
        if (!touch.per_block) return {0, touch.words};
        uint64_t size = touch.words / blocks_ / touch.grain * touch.grain;
        return {block_ * size, (block_ + 1) * size};
    }
    Range chunk(const Touch& touch) const {
        auto per_block = uint64_t(work_.workers_per_block);
        if (touch.per_block) return cut(part(touch), place_, per_block, touch.grain);
        return cut({0, touch.words}, number_, blocks_ * per_block, touch.grain);
    }

    uint64_t fold(uint64_t address, Range range, bool cached) {
        std::vector<uint32_t> words(range.end - range.begin);
        uint64_t first = address + kWordBytes * range.begin;
        if (cached) {
            for (size_t i = 0; i < words.size(); ++i) words[i] = uint32_t(m_.load(first + kWordBytes * i, kWordBytes));
        } else {
            m_.copy_in(words.data(), first, kWordBytes * words.size());
        }
        uint64_t sum = 0;
        for (uint32_t word : words) sum = sum * kFold + word;
        return sum;
    }

    void read(const Touch& touch) {
        if (touch.reads == Reads::nothing) return;
        uint64_t value = slot(touch);
        if (touch.reads != Reads::scalar) {
            Range range = touch.reads == Reads::whole ? Range{0, touch.words} : touch.reads == Reads::block ? part(touch) : chunk(touch);
            value = fold(value + touch.skip, range, touch.cached_in);
        }
        digest_ = absorb(digest_, value);
    }

    void write(const Touch& touch) {
        if (!touch.writes) return;
        Range range = chunk(touch);
        uint64_t address = slot(touch) + touch.skip + kWordBytes * range.begin;
        std::vector<uint32_t> words;
        for (uint64_t at = range.begin; at < range.end; ++at) {
            words.push_back(stored(digest_ + kParameter * (touch.slot + 1) + kWord * at));
        }
        if (touch.cached_out) {
            for (size_t i = 0; i < words.size(); ++i) m_.store(address + kWordBytes * i, words[i], kWordBytes);
        } else {
            m_.copy_out(address, words.data(), kWordBytes * words.size());
        }
    }

    void meet(uint32_t barrier) {
        auto most = uint64_t(work_.most_workers);
        uint64_t area = work_.meeting + kWordBytes * most * barrier;
        uint32_t word = stored(digest_ + kMeeting);
        m_.copy_out(area + kWordBytes * number_, &word, kWordBytes);
        m_.sync_all();
        digest_ = absorb(digest_, fold(area, {0, most}, false));
    }

    Machine& m_;
    const StandIn& work_;
    uint64_t slots_;            // address of the op's first slot
    const uint64_t* pointers_;  // instead, if it is called with what the slots hold
    uint64_t place_ = 0, block_ = 0, blocks_ = 1, number_ = 0, digest_ = 0;
};

}  // namespace

}  // namespace emulator

using emulator::Machine;
using emulator::machine;
using emulator::StandIn;

extern "C" {

void sk_emu_stand_in_body(uint64_t first_slot) {
    emulator::Worker(*machine, machine->stand_ins.at(machine->running->op), first_slot, nullptr).run();
}
void sk_emu_stand_in_with(const uint64_t* pointers) {
    emulator::Worker(*machine, machine->stand_ins.at(machine->running->op), 0, pointers).run();
}

void sk_emu_stand_in(Machine* m, uint32_t op, uint64_t footprint, uint64_t meeting, int64_t workers_per_block,
                     int64_t most_workers, uint32_t barriers, int waits, int sets, int always_sets) {
    StandIn& work = m->stand_ins[op];
    work.footprint = footprint, work.meeting = meeting;
    work.workers_per_block = workers_per_block, work.most_workers = most_workers;
    work.barriers = barriers, work.waits = waits != 0, work.sets = sets != 0, work.always_sets = always_sets != 0;
}
void sk_emu_stand_in_touch(Machine* m, uint32_t op, uint32_t slot, int32_t reads, int writes, int per_block,
                           uint32_t skip, uint32_t words, uint32_t grain, int cached_in, int cached_out) {
    m->stand_ins[op].touches.push_back(
        {slot, emulator::Reads(reads), writes != 0, per_block != 0, skip, words, grain, cached_in != 0, cached_out != 0});
}
void sk_emu_stand_in_follow(Machine* m, uint32_t op, uint64_t address, uint32_t words, int own) {
    m->stand_ins[op].follows.push_back({address, words, own != 0});
}
void sk_emu_stand_in_key(Machine* m, uint32_t op, const char* function, uint64_t key) {
    m->stand_ins[op].keys[function] = key;
}
}
