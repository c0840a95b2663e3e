// bind.cpp: numpy arrays -> addresses and sizes, checked, and the launch, in one call; tensors -> addresses. Entered
// with the GIL held.
//
// Python's own functions come as pointers, so that this library needs neither its headers nor its symbols.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "program.h"

namespace {

// numpy's array interface (version 3), as found behind __array_struct__
struct ArrayInterface {
    int two;
    int nd;
    char typekind;
    int itemsize;
    int flags;
    intptr_t* shape;
    intptr_t* strides;
    void* data;
    void* description;
};

constexpr int kContiguous = 0x1;
constexpr int kAligned = 0x100;
constexpr int kNotSwapped = 0x200;
constexpr int kWriteable = 0x400;

struct Python {
    void* (*list_item)(void* list, intptr_t index);            // PyList_GetItem
    void* (*capsule_pointer)(void* capsule, const char* name);  // PyCapsule_GetPointer
    void* (*save_thread)();                                     // PyEval_SaveThread: gives the GIL away
    void (*restore_thread)(void* state);                        // PyEval_RestoreThread
    void* (*tuple_item)(void* tuple, intptr_t index);           // PyTuple_GetItem
    void* none;
} python;

}  // namespace

using sk::host::kClosed;
using sk::host::kMisfit;
using sk::host::Program;
using sk::host::Running;

extern "C" {

// What is wanted of one name.
struct Wanted {
    int64_t elements;  // < 0: any
    int64_t reach;     // at least so many bytes
    int32_t itemsize;  // 0: any
    char typekind;     // 0: any
    uint8_t written;
    uint8_t memory;  // 0: a scalar
};

void sk_bind_python(const Python* functions) { python = *functions; }

// Fill values and sizes from capsules; where a capsule is None they are filled already. False: something does not fit.
static bool bind_arrays(void* capsules, int32_t count, const Wanted* wanted, uint64_t* values, int64_t* sizes) {
    for (int32_t place = 0; place < count; ++place) {
        void* capsule = python.list_item(capsules, place);
        if (capsule == python.none) continue;
        const Wanted& want = wanted[place];
        const auto* array = static_cast<const ArrayInterface*>(python.capsule_pointer(capsule, nullptr));
        if (array == nullptr || array->two != 2) return false;
        int64_t elements = 1;
        for (int d = 0; d < array->nd; ++d) elements *= array->shape[d];
        const bool fits = want.memory != 0 && (want.elements < 0 || elements == want.elements) &&
                          elements * array->itemsize >= want.reach &&
                          (want.itemsize == 0 || array->itemsize == want.itemsize) &&
                          (want.typekind == 0 || array->typekind == want.typekind) && array->typekind != 'O' &&
                          (array->flags & kContiguous) != 0 && (array->flags & kAligned) != 0 &&
                          (array->flags & kNotSwapped) != 0 &&
                          (want.written == 0 || (array->flags & kWriteable) != 0);
        if (!fits) return false;
        values[place] = reinterpret_cast<uint64_t>(array->data);
        sizes[place] = elements * array->itemsize;
    }
    return true;
}

// Do two names share memory, and one of them is written?
static bool overlap(int32_t count, const Wanted* wanted, const uint64_t* values, const int64_t* sizes) {
    thread_local std::vector<int32_t> order;
    order.clear();
    for (int32_t i = 0; i < count; ++i) {
        if (wanted[i].memory != 0 && sizes[i] > 0) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [values](int32_t a, int32_t b) { return values[a] < values[b]; });
    uint64_t reach = 0, written_reach = 0;
    for (const int32_t i : order) {
        if (values[i] < written_reach || (wanted[i].written != 0 && values[i] < reach)) return true;
        const uint64_t end = values[i] + uint64_t(sizes[i]);
        reach = std::max(reach, end);
        if (wanted[i].written != 0) written_reach = std::max(written_reach, end);
    }
    return false;
}

int32_t sk_bind(void* capsules, int32_t count, const Wanted* wanted, uint64_t* values, int64_t* sizes) {
    if (!bind_arrays(capsules, count, wanted, values, sizes) || overlap(count, wanted, values, sizes)) return int32_t(kMisfit);
    return 0;
}

// Item `index` of a tuple is a tensor, whose address belongs to `place`.
struct TensorInput {
    int32_t place, index;
};

// The addresses of tensors, as torch's own function finds them. A launch that has read a model's weights leaves nothing
// else in the caches: everything is asked for before the first is looked at, the tensors' objects, then what their first
// words point to. Where those are no pointers, that was in vain and no more.
void sk_fill(void* tuple, const TensorInput* inputs, int32_t count, uint64_t* values, void* (*address)(void* tensor)) {
    constexpr int kFirst = 2, kLast = 4;  // words behind an object's reference count and type
    for (int32_t i = 0; i < count; ++i) __builtin_prefetch(python.tuple_item(tuple, inputs[i].index));
    for (int32_t i = 0; i < count; ++i) {
        void* const* const tensor = static_cast<void**>(python.tuple_item(tuple, inputs[i].index));
        for (int word = kFirst; word < kLast; ++word) __builtin_prefetch(tensor[word]);
    }
    for (int32_t i = 0; i < count; ++i) {
        values[inputs[i].place] = reinterpret_cast<uint64_t>(address(python.tuple_item(tuple, inputs[i].index)));
    }
}

// What stays the same from call to call.
struct Caller {
    Program* program;
    const Wanted* wanted;
    int32_t count;
};

// Bind and launch. 0: done. kMisfit, kClosed: nothing was run, the caller finds the words. Otherwise the address of the
// launch that was stopped, still to be ended.
int64_t sk_call(const Caller* caller, void* capsules, const uint64_t* given_values, const int64_t* given_sizes,
                int32_t interrupts) {
    Running* running = sk_launch_begin(caller->program);
    if (running == nullptr) return kClosed;
    const int32_t sources = caller->program->facts.source_count;
    running->values.resize(sources);
    running->sizes.resize(sources);
    if (given_values != nullptr) {
        std::copy(given_values, given_values + sources, running->values.begin());
        std::copy(given_sizes, given_sizes + sources, running->sizes.begin());
    }
    uint64_t* values = running->values.data();
    int64_t* sizes = running->sizes.data();
    if (sk_bind(capsules, caller->count, caller->wanted, values, sizes) != 0) {
        sk_launch_end(running);
        return kMisfit;
    }
    void* thread = python.save_thread();
    const int32_t status = sk_launch_run(running, values, sizes, interrupts);
    if (status == 0) sk_launch_end(running);
    python.restore_thread(thread);
    return status == 0 ? 0 : reinterpret_cast<int64_t>(running);
}

}  // extern "C"
