/* library_unload.c: libsuperkernel is loaded, used and unloaded while the program goes on; two copies.
 *
 * program PACKAGE LIBRARY COPY; prints nothing and ends with status 0 if all is well, else with the line that failed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <superkernel/model.h>

#define CHECK(condition) do { if (!(condition)) _exit(__LINE__ % 250 + 1); } while (0)

static const int64_t kTwo[] = {2};
static const double kPromptSeconds = 0.1; /* a close that takes longer may leave threads, and with them the library */
static int kept = 0;

static sk_tensor vector(void* data, sk_dtype dtype, const int64_t* shape) {
    sk_tensor tensor;
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = 1;
    tensor.shape = shape;
    return tensor;
}

static int entry_count(const char* path) {
    DIR* folder = opendir(path);
    int count = -2;
    CHECK(folder != NULL);
    while (readdir(folder) != NULL) ++count;
    closedir(folder);
    return count;
}

static int thread_count(void) { return entry_count("/proc/self/task"); }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* 0: the C library does not tell. */
static size_t allocated_bytes(void) {
#if __GLIBC_PREREQ(2, 33)
    return mallinfo2().uordblks;
#else
    return 0;
#endif
}

static int mapped(const char* file) {
    static char line[8192];
    FILE* maps = fopen("/proc/self/maps", "r");
    int found = 0;
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) found = found || strstr(line, file) != NULL;
    fclose(maps);
    return found;
}

/* Loads, uses and unloads the library; with `closed` nothing of it is left. */
static void unload(const char* path, const char* file, int closed) {
    void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    sk_status (*open_function)(const char*, sk_model**);
    sk_status (*create)(sk_model*, const sk_options*, sk_context**);
    sk_status (*run)(sk_context*, const char*, const sk_tensor*, const sk_tensor*);
    sk_status (*destroy)(sk_context*);
    sk_status (*close_function)(sk_model*);
    int32_t x[2] = {1, 2}, y[2];
    sk_tensor in = vector(x, SK_INT32, kTwo), out = vector(y, SK_INT32, kTwo);
    sk_model* model = NULL;
    sk_context* context = NULL;
    CHECK(library != NULL);
    *(void**)&open_function = dlsym(library, "sk_model_open");
    *(void**)&create = dlsym(library, "sk_context_create");
    *(void**)&run = dlsym(library, "sk_run");
    *(void**)&destroy = dlsym(library, "sk_context_destroy");
    *(void**)&close_function = dlsym(library, "sk_model_close");
    CHECK(open_function(path, &model) == SK_OK && create(model, NULL, &context) == SK_OK);
    CHECK(run(context, "meet", &in, &out) == SK_OK && y[0] == 12 && y[1] == 21);
    CHECK(thread_count() == 2);
    if (closed) {
        const double start = seconds();
        CHECK(destroy(context) == SK_OK && close_function(model) == SK_OK);
        kept = kept || seconds() - start >= kPromptSeconds;
        while (thread_count() > 1) usleep(1000); /* the system removes threads a moment after they were joined */
    }
    CHECK(dlclose(library) == 0);
    if (closed) CHECK(kept || !mapped(file));
}

/* A program may do so as often as it likes. */
static void unload_often(const char* path, const char* file) {
    const int files = entry_count("/proc/self/fd");
    const size_t before = allocated_bytes();
    int i;
    for (i = 0; i < 20; ++i) unload(path, file, 1);
    CHECK(entry_count("/proc/self/fd") == files);
    CHECK(kept || allocated_bytes() < before + (64 << 10));
}

/* A failed check inside the code of a package comes to the copy of the library that runs it. */
static void failing_check(const char* path, const char* file) {
    void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    sk_status (*open_function)(const char*, sk_model**);
    sk_status (*create)(sk_model*, const sk_options*, sk_context**);
    sk_status (*run)(sk_context*, const char*, const sk_tensor*, const sk_tensor*);
    const char* (*last_error)(void);
    float x = -1, y = 0;
    sk_tensor in = vector(&x, SK_FLOAT32, NULL), out = vector(&y, SK_FLOAT32, NULL);
    sk_model* model = NULL;
    sk_context* context = NULL;
    in.rank = out.rank = 0;
    CHECK(library != NULL);
    *(void**)&open_function = dlsym(library, "sk_model_open");
    *(void**)&create = dlsym(library, "sk_context_create");
    *(void**)&run = dlsym(library, "sk_run");
    *(void**)&last_error = dlsym(library, "sk_last_error");
    CHECK(open_function(path, &model) == SK_OK && create(model, NULL, &context) == SK_OK);
    CHECK(run(context, "check", &in, &out) == SK_ERROR_KERNEL && strstr(last_error(), "out of range") != NULL);
}

int main(int count, char** words) {
    CHECK(count == 4);
    alarm(700);
    unload(words[1], words[2], 1);
    unload_often(words[1], words[2]);
    unload(words[1], words[2], 0);
    failing_check(words[1], words[2]);
    failing_check(words[1], words[3]);
    failing_check(words[1], words[2]);
    return 0;
}
