/* policy.c: opens a package, runs its entry "forward" and prints its outputs; then how long calls take.
 *
 *     ./policy policy.sk [CALLS]
 *
 * Every element of every input is 0.01 times its index: the outputs of a package are the same in every language. */
#define _POSIX_C_SOURCE 200112L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <superkernel/model.h>

#define ENTRY "forward"

static int fail(const char* what) {
    fprintf(stderr, "%s: %s\n", what, sk_last_error());
    return 1;
}

static size_t elements(const sk_tensor_info* info) { return info->bytes / sk_dtype_bytes(info->dtype); }

/* Memory for every input or output of an entry. */
static sk_tensor* make_tensors(const sk_tensor_info* infos, int32_t count) {
    sk_tensor* tensors = calloc((size_t)count + 1, sizeof *tensors);
    int32_t i;
    for (i = 0; tensors != NULL && i < count; ++i) {
        tensors[i].data = calloc(infos[i].bytes + 1, 1);
        tensors[i].dtype = infos[i].dtype;
        tensors[i].rank = infos[i].rank;
        tensors[i].shape = infos[i].shape;
    }
    return tensors;
}

static void free_tensors(sk_tensor* tensors, int32_t count) {
    int32_t i;
    for (i = 0; i < count; ++i) free(tensors[i].data);
    free(tensors);
}

static int print_outputs(const sk_shape_info* shape, const sk_tensor* outputs) {
    int32_t i;
    size_t k;
    for (i = 0; i < shape->output_count; ++i) {
        if (shape->outputs[i].dtype != SK_FLOAT32) continue;
        printf("%s:", shape->outputs[i].name);
        for (k = 0; k < elements(&shape->outputs[i]); ++k) printf(" %.9g", ((const float*)outputs[i].data)[k]);
        printf("\n");
    }
    return 0;
}

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int compare(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return x < y ? -1 : x > y;
}

/* The median and the 99th percentile of so many calls. */
static int measure(sk_context* context, const sk_tensor* inputs, const sk_tensor* outputs, int calls) {
    double* times = malloc((size_t)calls * sizeof *times);
    int i;
    if (times == NULL) return 1;
    for (i = 0; i < calls; ++i) {
        const double begin = microseconds();
        if (sk_run(context, ENTRY, inputs, outputs) != SK_OK) return fail("sk_run");
        times[i] = microseconds() - begin;
    }
    qsort(times, (size_t)calls, sizeof *times, compare);
    printf("%d calls: median %.2f us, 99th percentile %.2f us\n", calls, times[calls / 2], times[calls * 99 / 100]);
    free(times);
    return 0;
}

int main(int count, char** words) {
    sk_model* model = NULL;
    sk_context* context = NULL;
    const sk_entry_info* entry = NULL;
    const sk_shape_info* shape;
    sk_tensor *inputs, *outputs;
    int32_t index = 0, i;
    size_t k;
    const int calls = count > 2 ? atoi(words[2]) : 0;
    if (count < 2) {
        fprintf(stderr, "usage: %s PACKAGE [CALLS]\n", words[0]);
        return 2;
    }
    if (sk_model_open(words[1], &model) != SK_OK) return fail("sk_model_open");
    if (sk_context_create(model, NULL, &context) != SK_OK) return fail("sk_context_create");
    if (sk_entry_index(model, ENTRY, &index) != SK_OK || sk_model_entry(model, index, &entry) != SK_OK) return fail(ENTRY);
    shape = &entry->shapes[0];
    inputs = make_tensors(shape->inputs, shape->input_count);
    outputs = make_tensors(shape->outputs, shape->output_count);
    if (inputs == NULL || outputs == NULL) return 1;
    for (i = 0; i < shape->input_count; ++i) {
        if (shape->inputs[i].dtype != SK_FLOAT32) continue;
        for (k = 0; k < elements(&shape->inputs[i]); ++k) ((float*)inputs[i].data)[k] = 0.01f * (float)k;
    }
    if (sk_run(context, ENTRY, inputs, outputs) != SK_OK) return fail("sk_run");
    print_outputs(shape, outputs);
    if (calls > 0 && measure(context, inputs, outputs, calls) != 0) return 1;
    free_tensors(inputs, shape->input_count);
    free_tensors(outputs, shape->output_count);
    sk_context_destroy(context);
    sk_model_close(model);
    return 0;
}
