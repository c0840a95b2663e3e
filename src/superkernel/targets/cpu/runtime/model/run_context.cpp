// run_context.cpp: a context, an entry and the addresses of arguments -> its launches and copies, one after the other.
#include "run_context.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "failure.h"
#include "huge_pages.h"
#include "strided_copy.h"

namespace sk::model {
namespace {

constexpr int64_t kPage = 4096;
// Scratch memory begins in the middle of a page, to avoid 4K aliasing with arrays of callers, which mostly begin at the
// beginning of one: a load at the page offset of a recent store waits for that store.
constexpr int64_t kLead = kPage / 2;

}  // namespace

Scratch::Scratch(int64_t bytes, int64_t lead) {
    if (bytes == 0) return;
    const bool huge = bytes >= int64_t(kHugePage);
    const int64_t alignment = huge ? int64_t(kHugePage) : kPage;
    const int64_t room = (bytes + lead + alignment - 1) / alignment * alignment;
    mapped_bytes_ = size_t(room + alignment);
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) {
        fail(SK_ERROR_MEMORY, "no memory for a context: it needs %lld bytes", (long long)bytes);
    }
    const uintptr_t first = (reinterpret_cast<uintptr_t>(mapped_) + uintptr_t(alignment) - 1) / uintptr_t(alignment) * uintptr_t(alignment);
    data_ = reinterpret_cast<char*>(first) + lead;
    if (huge) madvise(reinterpret_cast<void*>(first), size_t(room), MADV_HUGEPAGE);
}

Scratch::~Scratch() {
    if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

RunContext::RunContext(ModelUse use, int threads) : use_(std::move(use)), model_(use_.model()) {
    const OpenModel& model = model_;
    for (const EntrySpec& entry : model.manifest().entries) {
        entries_.emplace_back();
        for (const ShapeSpec& shape : entry.shapes) entries_.back().push_back({&shape, {}, {}});
    }
    scratch_ = std::make_unique<Scratch>(lay_out_scratch(), kLead);
    states_ = std::make_unique<Scratch>(model.manifest().state_bytes, 0);
    reset();
    size_t most = 0;
    for (size_t i = 0; i < entries_.size(); ++i) {
        for (BoundShape& bound : entries_[i]) {
            bind(bound, model.manifest().entries[i], threads);
            most = std::max(most, bound.spec->inputs.size() + bound.spec->outputs.size());
        }
    }
    arguments_.resize(most);
}

// The arena of a shape, then the arena of a launch, then staged buckets: entries and launches use them in turn.
int64_t RunContext::lay_out_scratch() {
    int64_t arena = 0, inside = 0, staging = 0;
    for (std::vector<BoundShape>& shapes : entries_) {
        for (BoundShape& bound : shapes) {
            arena = std::max(arena, align_up(bound.spec->arena));
            for (const LaunchSpec& launch : bound.spec->launches) {
                for (const PlanSpec& plan : launch.plans) inside = std::max(inside, align_up(plan.arena_bytes));
            }
        }
    }
    launch_arena_ = arena;
    for (std::vector<BoundShape>& shapes : entries_) {
        for (BoundShape& bound : shapes) {
            int64_t end = 0;
            for (const std::vector<TensorSpec>* tensors : {&bound.spec->inputs, &bound.spec->outputs}) {
                for (const TensorSpec& tensor : *tensors) {
                    const bool staged = tensor.bucket_axis >= 0;
                    bound.staged.push_back(staged ? arena + inside + end : -1);
                    if (staged) end += align_up(tensor.bytes);
                }
            }
            staging = std::max(staging, end);
        }
    }
    return arena + inside + staging;
}

char* RunContext::address(const Place& place, const PlanSpec* plan, size_t argument) const {
    switch (place.memory) {
        case Memory::kWeight: return const_cast<char*>(model_.weights().data()) + place.offset;
        case Memory::kState: return states_->data() + place.offset;
        case Memory::kArena: return scratch_->data() + place.offset;
        case Memory::kLaunchArena: return scratch_->data() + launch_arena_ + plan->source_offset[argument];
        case Memory::kInput: return arguments_[size_t(place.index)] + place.offset;
        case Memory::kOutput: break;
    }
    return nullptr;  // outputs stand behind the inputs of a shape: see run_shape
}

void RunContext::bind(BoundShape& bound, const EntrySpec& entry, int threads) {
    const ShapeSpec& shape = *bound.spec;
    for (const LaunchSpec& launch : shape.launches) {
        const PlanSpec& plan = choose_plan(launch, threads);
        const bool solo = !plan.needs_team && (threads == 1 || plan.cores > threads);
        BoundLaunch found{std::make_unique<LaunchState>(model_.code().find(plan), entry.name, solo, model_.wait()), {}};
        for (size_t slot = 0; slot < plan.slot_source.size(); ++slot) {
            if (plan.slot_source[slot] < 0) continue;
            const auto argument = size_t(plan.slot_source[slot]);
            const Place& place = launch.arguments[argument];
            const int64_t addend = int64_t(plan.slot_literal[slot]);
            const int64_t room = place.memory == Memory::kLaunchArena ? plan.source_bytes[argument] : place.bytes;
            if (place.memory == Memory::kInput || place.memory == Memory::kOutput) {
                const int32_t first = place.memory == Memory::kInput ? 0 : int32_t(shape.inputs.size());
                found.patches.push_back({int32_t(slot), first + place.index, place.offset + addend, room - addend});
            } else {
                const char* const begin = address(place, &plan, argument);
                found.state->set_slot(slot, reinterpret_cast<uint64_t>(begin + addend), room - addend);
            }
        }
        bound.launches.push_back(std::move(found));
    }
}

SK_CALL_PATH void RunContext::check_addresses(const EntrySpec& entry, const ShapeSpec& shape, int64_t size, void* const* inputs,
                                 void* const* outputs) const {
    const size_t input_count = shape.inputs.size(), count = input_count + shape.outputs.size();
    const auto given = [&](size_t i) { return static_cast<const char*>(i < input_count ? inputs[i] : outputs[i - input_count]); };
    const auto tensor = [&](size_t i) -> const TensorSpec& { return i < input_count ? shape.inputs[i] : shape.outputs[i - input_count]; };
    for (size_t i = 0; i < count; ++i) {
        const TensorSpec& spec = tensor(i);
        const int64_t bytes = bytes_in_bucket(spec, size);
        if (bytes == 0) continue;
        const char* const begin = given(i);
        const char* const kind = i < input_count ? "input" : "output";
        if (begin == nullptr) fail(SK_ERROR_ARGUMENT, "entry '%s': %s '%s' has no memory", entry.name.c_str(), kind, spec.name.c_str());
        if (reinterpret_cast<uintptr_t>(begin) % sk_dtype_bytes(spec.dtype) != 0) {
            fail(SK_ERROR_ARGUMENT, "entry '%s': %s '%s' is not aligned to its elements of %zu bytes; give it memory that is", entry.name.c_str(), kind,
                 spec.name.c_str(), sk_dtype_bytes(spec.dtype));
        }
        if (i < input_count) continue;
        for (size_t other = 0; other < i; ++other) {
            const int64_t other_bytes = bytes_in_bucket(tensor(other), size);
            const char* const other_begin = given(other);
            if (other_bytes == 0 || begin + bytes <= other_begin || other_begin + other_bytes <= begin) continue;
            fail(SK_ERROR_ALIAS, "entry '%s': output '%s' overlaps %s '%s'; give it memory of its own", entry.name.c_str(),
                 spec.name.c_str(), other < input_count ? "input" : "output", tensor(other).name.c_str());
        }
    }
}

SK_CALL_PATH void RunContext::run(int entry, int shape, int64_t size, void* const* inputs, void* const* outputs) {
    const std::vector<EntrySpec>& specs = model_.manifest().entries;
    if (entry < 0 || size_t(entry) >= specs.size()) {
        fail(SK_ERROR_NO_SUCH_ENTRY, "there is no entry %d; the package has %zu", entry, specs.size());
    }
    const EntrySpec& spec = specs[size_t(entry)];
    if (shape == -1 && spec.shapes.size() == 1) shape = 0;
    if (shape < 0 || size_t(shape) >= spec.shapes.size()) {
        fail(SK_ERROR_SHAPE, "entry '%s' has no shape %d; it has %zu", spec.name.c_str(), shape, spec.shapes.size());
    }
    const ShapeSpec& chosen = spec.shapes[size_t(shape)];
    if (size != 0 && (size < 0 || size > chosen.bucket_size)) {
        fail(SK_ERROR_SHAPE, "entry '%s': the size %lld does not fit; the bucket has %lld", spec.name.c_str(), (long long)size,
             (long long)chosen.bucket_size);
    }
    if ((inputs == nullptr && !chosen.inputs.empty()) || (outputs == nullptr && !chosen.outputs.empty())) {
        fail(SK_ERROR_ARGUMENT, "entry '%s' takes %zu inputs and %zu outputs; null was given", spec.name.c_str(),
             chosen.inputs.size(), chosen.outputs.size());
    }
    check_addresses(spec, chosen, size, inputs, outputs);
    run_shape(entries_[size_t(entry)][size_t(shape)], size == chosen.bucket_size ? 0 : size, inputs, outputs);
}

SK_CALL_PATH void RunContext::run_shape(BoundShape& bound, int64_t size, void* const* inputs, void* const* outputs) {
    const ShapeSpec& shape = *bound.spec;
    const size_t input_count = shape.inputs.size();
    const Team::Caller here(model_.team());
    for (size_t i = 0; i < input_count; ++i) arguments_[i] = static_cast<char*>(inputs[i]);
    for (size_t i = 0; i < shape.outputs.size(); ++i) arguments_[input_count + i] = static_cast<char*>(outputs[i]);
    if (size != 0) {
        for (size_t i = 0; i < bound.staged.size(); ++i) {
            if (bound.staged[i] < 0) continue;
            arguments_[i] = scratch_->data() + bound.staged[i];
            if (i < input_count) pad_bucket(arguments_[i], static_cast<const char*>(inputs[i]), shape.inputs[i], size);
        }
    }
    for (BoundLaunch& launch : bound.launches) {
        for (const Patch& patch : launch.patches) {
            const char* const begin = arguments_[size_t(patch.argument)] + patch.offset;
            launch.state->set_slot(size_t(patch.slot), reinterpret_cast<uint64_t>(begin), patch.bytes);
        }
        launch.state->run(model_.team());
    }
    const auto find = [&](const Place& place) {
        return place.memory == Memory::kOutput ? arguments_[input_count + size_t(place.index)] + place.offset
                                               : address(place, nullptr, 0);
    };
    for (const CopySpec& copy : shape.copies) copy_strided(find(copy.to), find(copy.from), copy);
    if (size == 0) return;
    for (size_t i = 0; i < shape.outputs.size(); ++i) {
        if (bound.staged[input_count + i] < 0) continue;
        cut_bucket(static_cast<char*>(outputs[i]), arguments_[input_count + i], shape.outputs[i], size);
    }
}

void RunContext::run_tensors(const char* name, const sk_tensor* inputs, const sk_tensor* outputs) {
    const int entry = model_.find_entry(name);
    const EntrySpec& spec = model_.manifest().entries[size_t(entry)];
    const ShapeMatch match = match_shape(spec, inputs, outputs);
    const ShapeSpec& shape = spec.shapes[size_t(match.shape)];
    constexpr size_t kFew = 32;
    void* few[kFew];
    std::vector<void*> many;
    const size_t count = shape.inputs.size() + shape.outputs.size();
    void** addresses = few;
    if (count > kFew) {
        many.resize(count);
        addresses = many.data();
    }
    for (size_t i = 0; i < shape.inputs.size(); ++i) addresses[i] = inputs[i].data;
    for (size_t i = 0; i < shape.outputs.size(); ++i) addresses[shape.inputs.size() + i] = outputs[i].data;
    run(entry, match.shape, match.size, addresses, addresses + shape.inputs.size());
}

void RunContext::reset() {
    for (const StateSpec& state : model_.manifest().states) {
        if (state.tensor.bytes > 0) {
            memcpy(states_->data() + state.offset, model_.weights().data() + state.initial, size_t(state.tensor.bytes));
        }
    }
}

void RunContext::copy_states(const RunContext& from) {
    if (&from.model_ != &model_) {
        fail(SK_ERROR_WRONG_MODEL, "states can be copied between contexts of one model; these belong to '%s' and '%s'",
             from.model_.path().c_str(), model_.path().c_str());
    }
    const int64_t bytes = model_.manifest().state_bytes;
    if (bytes > 0) memcpy(states_->data(), from.states_->data(), size_t(bytes));
}

const StateSpec& RunContext::find_state(const char* name, size_t bytes) const {
    std::string all;
    for (const StateSpec& state : model_.manifest().states) {
        if (state.tensor.name == name) {
            if (int64_t(bytes) == state.tensor.bytes) return state;
            fail(SK_ERROR_SHAPE, "state '%s' has %lld bytes; %zu were given", name, (long long)state.tensor.bytes, bytes);
        }
        all += (all.empty() ? "" : ", ") + state.tensor.name;
    }
    fail(SK_ERROR_NO_SUCH_STATE, "the package '%s' has no state '%s'; %s%s", model_.path().c_str(), name,
         all.empty() ? "it has none" : "its states are ", all.c_str());
}

void RunContext::get_state(const char* name, void* data, size_t bytes) const {
    const StateSpec& state = find_state(name, bytes);
    if (bytes > 0) memcpy(data, states_->data() + state.offset, bytes);
}

void RunContext::set_state(const char* name, const void* data, size_t bytes) {
    const StateSpec& state = find_state(name, bytes);
    if (bytes > 0) memcpy(states_->data() + state.offset, data, bytes);
}

}  // namespace sk::model
