// model.h: open a model package (NAME.sk) and run its entries. C99; also usable from C++ (see model.hpp for RAII).
//
// Every function that can fail returns an sk_status: SK_OK, or a code; sk_last_error() is then a sentence that says what,
// where, and what to do. Nothing is printed, no function ends the process, no exception leaves.
//
// A model is the opened package: its code, its weights, its threads. Threads may share it. A context is what one caller
// runs in: states and scratch memory. Contexts of a model are independent and may run at the same time; two threads in one
// context are refused with SK_ERROR_BUSY.
//
// Opening a package loads native code from it: open only packages whose origin you trust. sk_package_verify() compares
// all files with their checksums and loads nothing.
//
// In the child of a fork, models of the parent keep working: calls run on the calling thread alone. A context that was running in
// another thread at the fork, or an entry that needs several threads, is refused there with SK_ERROR_FORKED.
#ifndef SUPERKERNEL_MODEL_H
#define SUPERKERNEL_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SK_API __attribute__((visibility("default")))
#else
#define SK_API
#endif

typedef enum sk_status {
    SK_OK = 0,
    SK_ERROR_ARGUMENT = 1,      /* a null pointer, an option out of range, a closed model or context */
    SK_ERROR_NOT_A_PACKAGE = 2, /* the path is no package */
    SK_ERROR_VERSION = 3,       /* written by a newer SuperKernel */
    SK_ERROR_CORRUPT = 4,       /* truncated, changed, or a manifest that contradicts itself */
    SK_ERROR_IO = 5,            /* a file is missing or cannot be read */
    SK_ERROR_PATH = 6,          /* a path that leads out of the package */
    SK_ERROR_UNSUPPORTED = 7,   /* this processor lacks the instructions, or the package needs torch */
    SK_ERROR_LOAD = 8,          /* a shared object of the package cannot be loaded, or lacks a symbol */
    SK_ERROR_NO_SUCH_ENTRY = 9,
    SK_ERROR_NO_SUCH_STATE = 10,
    SK_ERROR_DTYPE = 11,
    SK_ERROR_SHAPE = 12,
    SK_ERROR_ALIAS = 13,        /* an output overlaps another argument */
    SK_ERROR_BUSY = 14,         /* another thread runs in this context */
    SK_ERROR_IN_USE = 15,       /* contexts of the model exist */
    SK_ERROR_WRONG_MODEL = 16,  /* contexts of two different models */
    SK_ERROR_KERNEL = 17,       /* a check inside the model failed, such as an index out of range */
    SK_ERROR_FORKED = 18,
    SK_ERROR_MEMORY = 19,
    SK_ERROR_SYSTEM = 20,       /* a thread could not be started */
    SK_ERROR_INTERNAL = 21
} sk_status;

typedef enum sk_dtype {
    SK_FLOAT32 = 0,
    SK_FLOAT64 = 1,
    SK_FLOAT16 = 2,
    SK_BFLOAT16 = 3,
    SK_INT8 = 4,
    SK_UINT8 = 5,
    SK_INT16 = 6,
    SK_INT32 = 7,
    SK_INT64 = 8,
    SK_BOOL = 9
} sk_dtype;

/* How threads of a model wait for the next call, and a caller for its threads. */
typedef enum sk_wait {
    SK_WAIT_BALANCED = 0, /* spin for 0.1 ms, then sleep; wake up before the next of steady calls */
    SK_WAIT_SPIN = 1,     /* never sleep, nor let the caller's processor idle: lowest latency */
    SK_WAIT_SLEEP = 2     /* sleep at once: for machines that have other work */
} sk_wait;

typedef struct sk_model sk_model;
typedef struct sk_context sk_context;

/* An argument of a call: contiguous, in C order, in host memory, aligned to its element. */
typedef struct sk_tensor {
    void* data; /* inputs are not written */
    sk_dtype dtype;
    int32_t rank;
    const int64_t* shape;
} sk_tensor;

/* Zero is the default of every field. */
typedef struct sk_options {
    uint32_t size;        /* sizeof(sk_options) */
    int32_t threads;      /* the most that a call uses, the caller's included; 0: as many as affinity and CPU quota allow */
    int32_t wait;         /* sk_wait */
    const int32_t* cpus;  /* processors for the threads of the model, one after the other; the caller's is not moved */
    int32_t cpu_count;
    int32_t copy_weights; /* 1: weights are read into memory of huge pages instead of being mapped and shared */
} sk_options;

typedef struct sk_tensor_info {
    const char* name;
    sk_dtype dtype;
    int32_t rank;
    const int64_t* shape;
    size_t bytes;
    int32_t bucket_axis; /* the dimension that may be smaller in a call; -1: none */
} sk_tensor_info;

/* One set of shapes that an entry was compiled for. */
typedef struct sk_shape_info {
    int32_t input_count;
    int32_t output_count;
    const sk_tensor_info* inputs;
    const sk_tensor_info* outputs;
    const char* bucket_name; /* NULL: all dimensions are fixed */
    int64_t bucket_size;     /* the largest size of the dimension; smaller ones are padded inside */
} sk_shape_info;

typedef struct sk_entry_info {
    const char* name;
    const char* doc;
    int32_t shape_count;
    const sk_shape_info* shapes;
} sk_entry_info;

typedef struct sk_model_info {
    const char* name;
    const char* exported_by;     /* version of the exporting SuperKernel */
    const char* instruction_set; /* of the loaded code */
    int32_t entry_count;
    int32_t state_count;
    int32_t threads; /* the most that a call uses */
    size_t weight_bytes;
} sk_model_info;

/* The sentence of the calling thread's last failure; valid until its next call. Never NULL. */
SK_API const char* sk_last_error(void);
SK_API const char* sk_status_name(sk_status status);
SK_API const char* sk_dtype_name(sk_dtype dtype);
SK_API size_t sk_dtype_bytes(sk_dtype dtype); /* 0: there is no such dtype */
SK_API const char* sk_version(void);          /* of this library, as "0.1.0" */

/* Compares every file of a package with its checksum; loads no code. */
SK_API sk_status sk_package_verify(const char* path);

SK_API sk_status sk_model_open(const char* path, sk_model** model);
SK_API sk_status sk_model_open_with(const char* path, const sk_options* options, sk_model** model);
SK_API sk_status sk_model_close(sk_model* model); /* SK_ERROR_IN_USE while it has contexts; NULL is allowed */
/* Information lives as long as the model. */
SK_API sk_status sk_model_describe(sk_model* model, sk_model_info* info);
SK_API sk_status sk_model_entry(sk_model* model, int32_t index, const sk_entry_info** info);
SK_API sk_status sk_model_state(sk_model* model, int32_t index, const sk_tensor_info** info);
SK_API sk_status sk_entry_index(sk_model* model, const char* entry, int32_t* index);

/* options: NULL, or those of the model; a context may lower `threads`; the other fields are ignored. */
SK_API sk_status sk_context_create(sk_model* model, const sk_options* options, sk_context** context);
SK_API sk_status sk_context_destroy(sk_context* context); /* NULL is allowed */

/* Runs an entry. There are as many inputs and outputs as the entry has: see sk_model_entry. Outputs have memory, dtype and
 * shape like inputs, and may overlap nothing. After an error inside the model, outputs and states hold unfinished values. */
SK_API sk_status sk_run(sk_context* context, const char* entry, const sk_tensor* inputs, const sk_tensor* outputs);
/* The same by numbers and addresses, for callers that have checked dtypes and shapes. shape: an index into the entry's
 * shapes; -1: the only one. */
SK_API sk_status sk_run_index(sk_context* context, int32_t entry, int32_t shape, void* const* inputs,
                              void* const* outputs);
/* The same for a shape with a bucket: arguments have `size` in the place of its dimension, 1 to bucket_size. */
SK_API sk_status sk_run_bucket(sk_context* context, int32_t entry, int32_t shape, int64_t size, void* const* inputs,
                               void* const* outputs);

/* States: what a model keeps between calls. A new context has their initial values. */
SK_API sk_status sk_context_reset(sk_context* context);
SK_API sk_status sk_context_copy(sk_context* to, sk_context* from); /* all states; both contexts of one model */
SK_API sk_status sk_state_get(sk_context* context, const char* name, void* data, size_t bytes);
SK_API sk_status sk_state_set(sk_context* context, const char* name, const void* data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
