// python_call.cpp: arguments of a call from Python -> checks, arrays for the results, one run, what the call returns.
//
// A model that streams its weights through the caches evicts the interpreter. Written in Python, these steps take two
// microseconds while their code and data are cached, and ten after such a model; here they are a few cache lines.
#include "python_call.h"

#include <string.h>

#include "failure.h"
#include "superkernel/wait.h"

namespace sk::model::python {
namespace {

constexpr int64_t kMostArrays = 32;  // of inputs, and of results
constexpr int32_t kContiguous = 0x1, kAligned = 0x100, kWriteable = 0x400;
constexpr int32_t kFits = kContiguous | kAligned | kWriteable;
constexpr uint64_t kShortNs = 20'000;  // of a run during which other threads wait for the interpreter

const Array& array(const Object* object) { return *reinterpret_cast<const Array*>(object); }

bool fits(const Call& call, const Object* given, const Expected& expected) {
    if (given->type != call.array_type) return false;
    const Array& found = array(given);
    return found.dtype == expected.dtype && found.rank == expected.rank && (found.flags & kFits) == kFits &&
           memcmp(found.shape, expected.shape, size_t(expected.rank) * sizeof(int64_t)) == 0;
}

bool all_fit(const Call& call, Object* const* arguments, intptr_t count) {
    if (count != call.input_count) return false;
    for (int64_t i = 0; i < call.input_count; ++i) {
        if (!fits(call, arguments[i], call.inputs[i])) return false;
    }
    return true;
}

Object* const* items_of(const Call& call, const Object* tuple) {
    return reinterpret_cast<Object* const*>(reinterpret_cast<const char*>(tuple) + call.tuple_items);
}

int64_t size_of(const Object* tuple) { return reinterpret_cast<const Tuple*>(tuple)->size; }

// The arrays of `out=`, if that is the only argument by name and they fit: the array itself, or a tuple of one for each result.
Object* const* given_outputs(const Call& call, Object* const* named, const Object* names) {
    if (size_of(names) != 1 || items_of(call, names)[0] != call.out) return nullptr;
    Object* const* given = named;
    if (named[0]->type == call.tuple_type) {
        if (size_of(named[0]) != call.result_count) return nullptr;
        given = items_of(call, named[0]);
    } else if (call.result_count != 1) {
        return nullptr;
    }
    for (int64_t i = 0; i < call.result_count; ++i) {
        if (!fits(call, given[i], call.results[i].array)) return nullptr;
    }
    return given;
}

// By numpy's own function: `numpy.empty` reads its arguments before it calls that, in code that no cache holds after a pause.
SK_CALL_PATH Object* new_array(const Call& call, const Result& result) {
    if (result.allocate != nullptr) return call.vector_call(result.allocate, result.arguments, 2, nullptr);
    const Expected& array = result.array;
    call.refer(array.dtype);
    return call.new_array(call.array_type, array.dtype, int(array.rank), array.shape, nullptr, nullptr, 0, nullptr);
}

// References to the results of a call, given back unless they are returned; or arrays that the caller has, in `out`. There is
// no destructor: where the interpreter ends while a daemon thread computes, it unwinds the thread's stack, and nothing of the
// interpreter may be touched then.
struct Results {
    const Call& call;
    Object* const out;           // what was passed as `out=`, which the call returns; null: it makes arrays
    Object* const* const given;  // the arrays of `out`
    int64_t count = 0;
    Object* arrays[kMostArrays];

    Results(const Call& of, Object* passed, Object* const* outputs) : call(of), out(passed), given(outputs) {}
    Results(const Results&) = delete;

    void give_back() {
        while (count > 0) call.forget(arrays[--count]);
    }

    bool place(void** addresses) {
        for (int64_t i = 0; out != nullptr && i < call.result_count; ++i) addresses[i] = array(given[i]).data;
        while (out == nullptr && count < call.result_count) {
            Object* const made = new_array(call, call.results[count]);
            if (made == nullptr) return false;
            arrays[count] = made;
            addresses[count++] = array(made).data;
        }
        return true;
    }

    Object* returned() {
        if (out != nullptr) {
            call.refer(out);
            return out;
        }
        if (call.put != nullptr) return call.vector_call(call.put, arrays, size_t(count), nullptr);
        if (count == 1) return arrays[--count];
        Object* const tuple = call.new_tuple(count);
        if (tuple == nullptr) return nullptr;
        const int64_t items = count;
        count = 0;
        for (int64_t i = 0; i < items; ++i) call.set_item(tuple, i, arrays[i]);
        return tuple;
    }
};

SK_CALL_PATH sk_status run(const Call& call, void* const* inputs, void* const* outputs) {
    const uint64_t begin = now_ns();
    const sk_status status =
        call.bucket_size == 0 ? sk_run_index(call.context, call.entry, call.shape, inputs, outputs)
                              : sk_run_bucket(call.context, call.entry, call.shape, call.bucket_size, inputs, outputs);
    *call.last_run_ns = now_ns() - begin;
    return status;
}

// True: this thread keeps the interpreter while it runs, and needs no lock, since no other thread can take one meanwhile. A
// thread that gives the interpreter away for so short a run may get it back 5 ms later; and a lock's code is cold after a pause.
SK_CALL_PATH bool keeps_interpreter(const Call& call) {
    return call.held != nullptr && *call.last_run_ns != 0 && *call.last_run_ns < kShortNs && *call.held == 0;
}

// Raises; the status is among the numbers that the loader passed, or the last of them stands for it.
Object* refuse(const Call& call, sk_status status) {
    const int64_t known = int64_t(status) < call.status_count ? int64_t(status) : call.status_count - 1;
    return call.vector_call(call.refuse, call.statuses + known, 1, nullptr);
}

// Between `acquire` and `release` no function of Python is called that could raise.
SK_CALL_PATH Object* run_into(Results& results, Object* const* arguments, intptr_t count, Object* names) {
    const Call& call = results.call;
    void *inputs[kMostArrays], *outputs[kMostArrays];
    if (!results.place(outputs)) return nullptr;
    // Where that was code of Python, other threads may have run, and an argument may be another array now.
    if (!all_fit(call, arguments, count)) return call.vector_call(call.otherwise, arguments, size_t(count), names);
    for (int64_t i = 0; i < call.input_count; ++i) inputs[i] = array(arguments[i]).data;
    const auto finish = [&](sk_status status) {
        if (status == SK_OK) return results.returned();
        // arrays that overlap: nothing was run
        return status == SK_ERROR_ALIAS ? call.vector_call(call.otherwise, arguments, size_t(count), names) : refuse(call, status);
    };
    if (keeps_interpreter(call)) return finish(run(call, inputs, outputs));
    Object* const was_free = call.vector_call(call.acquire, &call.no, 1, nullptr);
    if (was_free == nullptr) return nullptr;
    call.forget(was_free);
    if (was_free != call.yes) return call.vector_call(call.otherwise, arguments, size_t(count), names);
    void* const thread = call.release_interpreter();
    const sk_status status = run(call, inputs, outputs);
    call.take_interpreter(thread);
    Object* const nothing = call.vector_call(call.release, nullptr, 0, nullptr);
    if (nothing == nullptr) return nullptr;
    call.forget(nothing);
    return finish(status);
}

SK_CALL_PATH Object* run_call(const Call& call, Object* const* arguments, intptr_t count, Object* names) {
    Object* const* const given = names == nullptr ? nullptr : given_outputs(call, arguments + count, names);
    if ((names != nullptr && given == nullptr) || !all_fit(call, arguments, count)) {
        return call.vector_call(call.otherwise, arguments, size_t(count), names);
    }
    Results results(call, given == nullptr ? nullptr : arguments[count], given);
    Object* const returned = run_into(results, arguments, count, names);
    results.give_back();
    return returned;
}

}  // namespace
}  // namespace sk::model::python

using namespace sk::model::python;

extern "C" SK_CALL_PATH Object* sk_python_call_3(Object* self, Object* const* arguments, intptr_t count, Object* names) {
    return run_call(*reinterpret_cast<const Call*>(reinterpret_cast<const Bytes*>(self)->data), arguments, count, names);
}
