// check.cpp: debug-check=1: a launch runs on copies of its buffers, far from each other; results are copied back.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "program.h"

namespace sk::host {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kLeastShift = 18;
constexpr uint64_t kGuard = uint64_t(1) << 36;  // further than a wrong 32-bit index of doubles goes

char* at(uint64_t address) { return reinterpret_cast<char*>(address); }

// A second array of the same size holds, behind each byte, the stamp of the op that wrote it last.
void reserve(CheckedMemory& memory, int slabs, int shift) {
    if (memory.mapped != nullptr && memory.tables.shift >= shift) return;
    release(memory);
    const uint64_t total = uint64_t(slabs) << shift;
    const uint64_t everything = 2 * total + 3 * kGuard;  // guard, slabs, guard, shadow, guard
    void* const mapped = mmap(nullptr, everything, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return;
    memory.mapped = mapped;
    memory.mapped_bytes = everything;
    memory.tables.guard = reinterpret_cast<uint64_t>(mapped);
    memory.tables.guard_bytes = everything;
    memory.tables.base = memory.tables.guard + kGuard;
    memory.tables.total = total;
    memory.tables.shadow = memory.tables.base + total + kGuard;
    for (const uint64_t begin : {memory.tables.base, memory.tables.shadow}) {
        if (mprotect(at(begin), total, PROT_READ | PROT_WRITE) != 0) return release(memory);
    }
    memory.tables.shift = shift;
    memory.tables.slabs = slabs;
}

void copy_back(const Running& running) {
    const CheckedMemory& memory = *running.checked;
    const Facts& facts = running.program->facts;
    for (int32_t i = 0; i < facts.source_count; ++i) {
        if (facts.buffer_use[i] != BufferUse::kWritten || memory.bytes[i] == 0) continue;
        std::memcpy(at(memory.given[i]), at(memory.begin[i]), size_t(memory.bytes[i]));
    }
}

void publish(Launch* launch) { copy_back(*static_cast<Running*>(launch)); }

}  // namespace

void release(CheckedMemory& memory) {
    if (memory.mapped != nullptr) munmap(memory.mapped, memory.mapped_bytes);
    memory.mapped = nullptr;
}

const uint64_t* begin_check(Running& running, const uint64_t* values, const int64_t* bytes) {
    const Facts& facts = running.program->facts;
    if (running.checked == nullptr) running.checked = std::make_unique<CheckedMemory>();
    CheckedMemory& memory = *running.checked;
    const int slabs = facts.source_count + 1;  // the last one: copies of replicated buffers
    int64_t largest = facts.copies_bytes;
    for (int32_t i = 0; i < facts.source_count; ++i) largest = std::max(largest, bytes[i]);
    int shift = kLeastShift;
    while ((int64_t(1) << shift) < 4 * (largest + int64_t(kPage))) ++shift;
    reserve(memory, slabs, shift);
    if (memory.mapped == nullptr) return nullptr;
    CheckTables& tables = memory.tables;
    const uint64_t slab = uint64_t(1) << tables.shift;
    memory.given.assign(values, values + facts.source_count);
    memory.bytes.assign(bytes, bytes + facts.source_count);
    memory.begin.assign(values, values + facts.source_count);
    memory.end.assign(size_t(slabs), 0);
    for (int32_t i = 0; i < facts.source_count; ++i) {
        if (facts.buffer_use[i] == BufferUse::kNoMemory) continue;
        // at the same place in its page: how a kernel deals with an array's ends depends on where they are
        const uint64_t begin = tables.base + uint64_t(i) * slab + slab / 4 + values[i] % kPage;
        memory.begin[i] = begin;
        memory.end[i] = begin + uint64_t(bytes[i]);
        if (bytes[i] == 0) continue;
        std::memcpy(at(begin), at(values[i]), size_t(bytes[i]));
        if (facts.buffer_use[i] == BufferUse::kWritten) {
            std::memset(at(begin - tables.base + tables.shadow), 0, size_t(bytes[i]));
        }
    }
    memory.begin.push_back(tables.base + uint64_t(slabs - 1) * slab + slab / 4);
    memory.end[slabs - 1] = memory.begin.back() + uint64_t(facts.copies_bytes);
    if (facts.copies_bytes > 0) {
        const uint64_t shadow = memory.begin.back() - tables.base + tables.shadow;
        std::memset(at(shadow), 0, size_t(facts.copies_bytes));
        memory.outer_copies = running.copies;
        running.copies = at(memory.begin.back());
    }
    tables.steps = facts.checked_steps;
    tables.slots = facts.checked_slots;
    tables.begin = memory.begin.data();
    tables.end = memory.end.data();
    tables.publish = publish;
    running.check = &tables;
    return memory.begin.data();
}

void end_check(Running& running) {
    if (running.abort.load() == 0) copy_back(running);
    if (running.program->facts.copies_bytes > 0) running.copies = running.checked->outer_copies;
    running.check = nullptr;
}

}  // namespace sk::host
