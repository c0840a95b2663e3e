/* library_figures.c: what opening a package costs, and how even calls at a fixed rate are; figures in JSON.
 *
 * program PACKAGE ENTRY CALLS GAP_MICROSECONDS [THREADS] [WAIT] */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <superkernel/model.h>

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

/* Memory of this process that is no file: kilobytes. */
static long own_memory(void) {
    char line[256];
    long kilobytes = 0;
    FILE* status = fopen("/proc/self/status", "r");
    if (status == NULL) return -1;
    while (fgets(line, sizeof line, status) != NULL) sscanf(line, "RssAnon: %ld", &kilobytes);
    fclose(status);
    return kilobytes;
}

static int compare(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return x < y ? -1 : x > y;
}

static void** make_memory(const sk_tensor_info* infos, int32_t count) {
    void** memory = calloc((size_t)count + 1, sizeof *memory);
    int32_t i;
    for (i = 0; i < count; ++i) memory[i] = calloc(infos[i].bytes + 64, 1);
    return memory;
}

/* Sleeps until shortly before the time, then looks at the clock. */
static void wait_until(double when) {
    const struct timespec pause = {0, 50000};
    while (when - microseconds() > 200) nanosleep(&pause, NULL);
    while (microseconds() < when) {}
}

int main(int count, char** words) {
    sk_options options;
    sk_model* model = NULL;
    sk_context* context = NULL;
    const sk_entry_info* entry = NULL;
    int32_t index = 0;
    int calls, i;
    double begin, opened, next, gap, *times;
    long before = own_memory(), memory;
    void **inputs, **outputs;
    if (count < 5) return 2;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = count > 5 ? atoi(words[5]) : 0;
    options.wait = count > 6 ? atoi(words[6]) : 0;
    begin = microseconds();
    if (sk_model_open_with(words[1], &options, &model) || sk_context_create(model, NULL, &context) ||
        sk_entry_index(model, words[2], &index) || sk_model_entry(model, index, &entry)) {
        fprintf(stderr, "%s\n", sk_last_error());
        return 1;
    }
    opened = microseconds() - begin;
    calls = atoi(words[3]);
    gap = atof(words[4]);
    inputs = make_memory(entry->shapes[0].inputs, entry->shapes[0].input_count);
    outputs = make_memory(entry->shapes[0].outputs, entry->shapes[0].output_count);
    times = malloc((size_t)(calls + 1) * sizeof *times);
    for (i = -100, next = microseconds(); i < calls; ++i) {
        next += gap;
        if (gap > 0) wait_until(next);
        begin = microseconds();
        if (sk_run_index(context, index, 0, inputs, outputs) != SK_OK) {
            fprintf(stderr, "%s\n", sk_last_error());
            return 1;
        }
        if (i >= 0) times[i] = microseconds() - begin;
    }
    memory = own_memory() - before;
    qsort(times, (size_t)calls, sizeof *times, compare);
    printf("{\"open_us\": %.1f, \"own_kilobytes\": %ld, \"p50_us\": %.3f, \"p99_us\": %.3f, \"max_us\": %.3f}\n", opened, memory,
           times[calls / 2], times[calls * 99 / 100], times[calls - 1]);
    return 0;
}
