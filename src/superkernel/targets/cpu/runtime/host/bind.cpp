// bind.cpp: numpy arrays -> addresses and sizes, checked, and the launch, in one call; tensors -> addresses. Entered
// with the GIL held.
//
// Python's C functions are passed as pointers, so that this library needs neither its headers nor its symbols.
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
    void* (*save_thread)();                                     // PyEval_SaveThread: releases the GIL
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

// What the buffer of one name must satisfy.
struct BufferCheck {
    int64_t elements;  // < 0: any
    int64_t least_bytes;
    int32_t itemsize;  // 0: any
    char typekind;     // 0: any
    uint8_t written;
    uint8_t memory;  // 0: a scalar
};

void sk_bind_python(const Python* functions) { python = *functions; }

// Fill values and sizes from capsules; where a capsule is None they are filled already. False: a buffer does not satisfy its check.
static bool bind_arrays(void* capsules, int32_t count, const BufferCheck* checks, uint64_t* values, int64_t* sizes) {
    for (int32_t i = 0; i < count; ++i) {
        void* capsule = python.list_item(capsules, i);
        if (capsule == python.none) continue;
        const BufferCheck& check = checks[i];
        const auto* array = static_cast<const ArrayInterface*>(python.capsule_pointer(capsule, nullptr));
        if (array == nullptr || array->two != 2) return false;
        int64_t elements = 1;
        for (int d = 0; d < array->nd; ++d) elements *= array->shape[d];
        const bool fits = check.memory != 0 && (check.elements < 0 || elements == check.elements) &&
                          elements * array->itemsize >= check.least_bytes &&
                          (check.itemsize == 0 || array->itemsize == check.itemsize) &&
                          (check.typekind == 0 || array->typekind == check.typekind) && array->typekind != 'O' &&
                          (array->flags & kContiguous) != 0 && (array->flags & kAligned) != 0 &&
                          (array->flags & kNotSwapped) != 0 &&
                          (check.written == 0 || (array->flags & kWriteable) != 0);
        if (!fits) return false;
        values[i] = reinterpret_cast<uint64_t>(array->data);
        sizes[i] = elements * array->itemsize;
    }
    return true;
}

// Whether two names share memory and one of them is written.
static bool overlap(int32_t count, const BufferCheck* checks, const uint64_t* values, const int64_t* sizes) {
    thread_local std::vector<int32_t> order;
    order.clear();
    for (int32_t i = 0; i < count; ++i) {
        if (checks[i].memory != 0 && sizes[i] > 0) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [values](int32_t a, int32_t b) { return values[a] < values[b]; });
    uint64_t reach = 0, written_reach = 0;
    for (const int32_t i : order) {
        if (values[i] < written_reach || (checks[i].written != 0 && values[i] < reach)) return true;
        const uint64_t end = values[i] + uint64_t(sizes[i]);
        reach = std::max(reach, end);
        if (checks[i].written != 0) written_reach = std::max(written_reach, end);
    }
    return false;
}

int32_t sk_bind(void* capsules, int32_t count, const BufferCheck* checks, uint64_t* values, int64_t* sizes) {
    if (!bind_arrays(capsules, count, checks, values, sizes) || overlap(count, checks, values, sizes)) return int32_t(kMisfit);
    return 0;
}

// Item `index` of a tuple is a tensor, whose address belongs to `place`.
struct TensorInput {
    int32_t place, index;
};

// The addresses of tensors, found by a function of torch. A launch that has read a model's weights evicts everything
// else from the caches, so all objects are prefetched before the first is read: the tensors, then what their first
// words point to. A word that is no pointer costs a useless prefetch and nothing more.
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

// Bytes of item `index` of a tuple, a tensor, from its address on.
struct TensorSpan {
    int32_t index, written;
    int64_t bytes;
};

// Whether the spans of two tensors overlap, one of which is written. `order` is what the last call left: spans by
// address, which seldom change between calls.
int32_t sk_tensors_overlap(void* tuple, const TensorSpan* spans, int32_t count, uint64_t* addresses, int32_t* order,
                           void* (*address)(void* tensor)) {
    for (int32_t i = 0; i < count; ++i) {
        addresses[i] = reinterpret_cast<uint64_t>(address(python.tuple_item(tuple, spans[i].index)));
    }
    for (int32_t i = 1; i < count; ++i) {  // insertion sort: one pass over what is sorted already
        const int32_t moved = order[i];
        int32_t to = i;
        for (; to > 0 && addresses[order[to - 1]] > addresses[moved]; --to) order[to] = order[to - 1];
        order[to] = moved;
    }
    uint64_t reach = 0, written_reach = 0;
    for (int32_t i = 0; i < count; ++i) {
        const TensorSpan& span = spans[order[i]];
        if (span.bytes == 0) continue;
        const uint64_t begin = addresses[order[i]], end = begin + uint64_t(span.bytes);
        if (begin < written_reach || (span.written != 0 && begin < reach)) return 1;
        reach = std::max(reach, end);
        if (span.written != 0) written_reach = std::max(written_reach, end);
    }
    return 0;
}

// The constants of repeated calls.
struct Caller {
    Program* program;
    const BufferCheck* checks;
    int32_t count;
};

// Bind and launch. 0: done. kMisfit, kClosed: nothing was run, and the caller writes the error. Otherwise the address of
// the stopped launch, which the caller must end.
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
    if (sk_bind(capsules, caller->count, caller->checks, values, sizes) != 0) {
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
