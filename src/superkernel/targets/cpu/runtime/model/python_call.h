// python_call.h: a call of an entry as the Python loader prepares it: what its arguments must be, and what it returns.
//
// The library is not linked with Python: the loader passes the interpreter's functions that a call needs. The structures
// have the fields of package/native_calls.py, in their order; package/object_layouts.py finds out whether the
// interpreter's objects have the layout of the declarations here; otherwise entries are called by ctypes.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "superkernel/model.h"

namespace sk::model::python {

struct Object {
    intptr_t references;
    const Object* type;
};

struct Bytes {
    Object head;
    intptr_t size, hash;
    char data[1];
};

// Its items begin at Call::tuple_items.
struct Tuple {
    Object head;
    intptr_t size;
};

// The public part of numpy's array objects.
struct Array {
    Object head;
    char* data;
    int32_t rank;
    const int64_t* shape;
    const int64_t* strides;
    Object* base;
    const Object* dtype;
    int32_t flags;
};

// An array that fits at first sight; its dtype is an object that numpy has once.
struct Expected {
    Object* dtype;
    const int64_t* shape;
    int64_t rank;
};

// `allocate` null: numpy makes the array. Otherwise allocate(arguments[0], arguments[1]) returns it.
struct Result {
    Expected array;
    Object* allocate;
    Object* arguments[2];
};

using NewArray = Object*(const Object* type, Object* dtype, int rank, const int64_t* shape, const int64_t* strides,
                         void* data, int flags, Object* owner);  // takes over a reference to the dtype

struct Call {
    Object* (*vector_call)(Object* function, Object* const* arguments, size_t count, Object* names);
    void* (*release_interpreter)();
    void (*take_interpreter)(void* thread);
    void (*refer)(Object*);
    void (*forget)(Object*);
    Object* (*new_tuple)(intptr_t size);
    int (*set_item)(Object* tuple, intptr_t index, Object* item);  // takes over the reference to the item
    NewArray* new_array;
    const Object* array_type;
    const Object* tuple_type;
    const Object* out;  // the name of the argument `out`, a string of which the interpreter has one
    Object* acquire;  // acquire(no) of the lock of the context: returns `yes` if the lock was free
    Object* release;
    Object *yes, *no;
    Object* otherwise;  // is called with the same arguments where they do not fit
    Object* refuse;     // refuse(status) raises what the library says of a failure
    Object* put;        // put(results...) returns what the call returns; null: the only result, or a tuple of all
    Object* const* statuses;  // numbers of Python, by status
    sk_context* context;
    const Expected* inputs;
    const Result* results;
    const volatile char* held;  // a byte of the lock: 0 while the lock is free; null: it is not known where that byte is
    uint64_t* last_run_ns;      // 0: there was none
    int64_t input_count, result_count, status_count;
    int64_t bucket_size;  // 0: the shape has no bucket, or it is full
    int64_t tuple_items;  // where the items of a tuple begin
    int32_t entry, shape;
};

}  // namespace sk::model::python

extern "C" {
// A function for Python's METH_FASTCALL | METH_KEYWORDS, whose `self` is a bytes object that holds a Call. Its number changes
// with the structures: a loader of another version does not find it, and calls by ctypes.
SK_API sk::model::python::Object* sk_python_call_3(sk::model::python::Object* self,
                                                   sk::model::python::Object* const* arguments, intptr_t count,
                                                   sk::model::python::Object* names);

// As sk_model_open_with: the package is in the folder of a descriptor, to which the path led. The loader reads it as well.
SK_API sk_status sk_python_open(const char* path, int32_t folder, const sk_options* options, sk_model** model);
}
