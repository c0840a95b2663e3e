/* library_starved.c: models are closed and libsuperkernel is unloaded while their threads get no time on a busy processor.
 *
 * program MODE PACKAGE LIBRARY; prints nothing and ends with status 0 if all is well, else with the line that failed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <superkernel/model.h>

#define CHECK(condition) do { if (!(condition)) _exit(__LINE__ % 250 + 1); } while (0)

enum { kBusy = 8 };

static const int64_t kTwo[] = {2}, kOne[] = {1};
static pid_t busy[kBusy];
static char schedstat[64];
static void* library;
static sk_status (*open_model)(const char*, const sk_options*, sk_model**);
static sk_status (*create)(sk_model*, const sk_options*, sk_context**);
static sk_status (*run)(sk_context*, const char*, const sk_tensor*, const sk_tensor*);
static sk_status (*destroy)(sk_context*);
static sk_status (*close_model)(sk_model*);

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* For which the first thread has waited for a processor; signal handlers may ask. */
static double waited_seconds(void) {
    char text[128] = "";
    const char* second;
    const int file = open(schedstat, O_RDONLY);
    if (file < 0) return 0; /* the system does not tell */
    CHECK(read(file, text, sizeof text - 1) > 0 && (second = strchr(text, ' ')) != NULL);
    CHECK(close(file) == 0);
    return 1e-9 * (double)strtoull(second, NULL, 10);
}

/* Without the time for which the first thread has waited for a processor. */
static double own_seconds(void) { return seconds() - waited_seconds(); }

/* Threads of this process, this one excluded; those of the model get the lowest priority as well. */
static int other_threads(int lower) {
    DIR* folder = opendir("/proc/self/task");
    struct dirent* entry;
    struct sched_param lowest;
    int count = 0;
    memset(&lowest, 0, sizeof lowest);
    CHECK(folder != NULL);
    while ((entry = readdir(folder)) != NULL) {
        const int thread = atoi(entry->d_name);
        if (thread == 0 || thread == getpid()) continue;
        ++count;
        if (lower) CHECK(sched_setscheduler(thread, SCHED_IDLE, &lowest) == 0);
    }
    closedir(folder);
    return count;
}

/* The system removes a thread a moment after it was joined; one that a close has left ends when it gets a processor. */
static void await_end_of_other_threads(void) {
    while (other_threads(0) > 0) usleep(1000);
}

static void load_library(const char* file) {
    library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    *(void**)&open_model = dlsym(library, "sk_model_open_with");
    *(void**)&create = dlsym(library, "sk_context_create");
    *(void**)&run = dlsym(library, "sk_run");
    *(void**)&destroy = dlsym(library, "sk_context_destroy");
    *(void**)&close_model = dlsym(library, "sk_model_close");
}

static sk_tensor vector(int32_t* data, const int64_t* shape) {
    sk_tensor tensor;
    tensor.data = data;
    tensor.dtype = SK_INT32;
    tensor.rank = 1;
    tensor.shape = shape;
    return tensor;
}

static void open_and_meet(const char* path, int wait, sk_model** model, sk_context** context) {
    int32_t x[2] = {1, 2}, y[2];
    sk_tensor in = vector(x, kTwo), out = vector(y, kTwo);
    sk_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 2;
    options.wait = wait;
    CHECK(open_model(path, &options, model) == SK_OK && create(*model, NULL, context) == SK_OK);
    CHECK(run(*context, "meet", &in, &out) == SK_OK && y[0] == 12 && y[1] == 21);
}

/* All threads on one processor, which other processes want as well, and no right to a higher priority. */
static void one_processor(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];
    const struct rlimit no_priority = {0, 0};
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    memset(none, 0, sizeof none);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
    CHECK(setrlimit(RLIMIT_NICE, &no_priority) == 0 && syscall(SYS_capset, &header, none) == 0);
}

static void begin_busy(void) {
    int i;
    for (i = 0; i < kBusy; ++i) {
        busy[i] = fork();
        CHECK(busy[i] >= 0);
        if (busy[i] == 0) {
            CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
            for (;;) continue;
        }
    }
}

static void end_busy(void) {
    int i;
    alarm(700); /* the busy processes end when they get a processor */
    for (i = 0; i < kBusy; ++i) CHECK(kill(busy[i], SIGKILL) == 0 && waitpid(busy[i], NULL, 0) == busy[i]);
}

/* A close takes 0.1 s and what this thread waits for the processor. Threads that are left keep their code. */
static void close_promptly(const char* path, const char* file) {
    sk_model* model[4];
    sk_context* context[4];
    double start;
    int i;
    one_processor();
    load_library(file);
    for (i = 0; i < 4; ++i) open_and_meet(path, i % 2 == 0 ? SK_WAIT_SPIN : SK_WAIT_BALANCED, &model[i], &context[i]);
    CHECK(other_threads(1) == 6);
    begin_busy();
    start = own_seconds();
    for (i = 0; i < 4; ++i) CHECK(destroy(context[i]) == SK_OK && close_model(model[i]) == SK_OK);
    CHECK(own_seconds() - start < 3);
    CHECK(other_threads(0) > 0);
    CHECK(dlclose(library) == 0);
    end_busy();
    await_end_of_other_threads();
    load_library(file);
    open_and_meet(path, SK_WAIT_SPIN, &model[0], &context[0]);
    CHECK(destroy(context[0]) == SK_OK && close_model(model[0]) == SK_OK);
    await_end_of_other_threads();
}

/* Unloading waits for the threads of models that are open: their code goes. */
static void unload_open(const char* path, const char* file) {
    sk_model* model;
    sk_context* context;
    one_processor();
    load_library(file);
    open_and_meet(path, SK_WAIT_SPIN, &model, &context);
    CHECK(other_threads(1) == 2);
    begin_busy();
    CHECK(dlclose(library) == 0);
    await_end_of_other_threads();
    end_busy();
    CHECK(dlopen(file, RTLD_NOW | RTLD_NOLOAD) == NULL);
}

static int32_t go = 0, started = 0;

static void* run_for_ever(void* context) {
    sk_tensor in = vector(&go, kOne), out = vector(&started, kOne);
    run((sk_context*)context, "wait", &in, &out);
    return NULL;
}

static void unload(void) { CHECK(dlclose(library) == 0); }

static double ending = 0;

static void check_end(int signal) {
    (void)signal;
    CHECK(own_seconds() - ending < 4);
    alarm(1);
}

/* The process ends at once while a call is going on and threads have no processor, also where an exit handler unloads. */
static void end_process(const char* path, const char* file) {
    sk_model* model;
    sk_context *context, *other;
    pthread_t thread;
    one_processor();
    CHECK(atexit(end_busy) == 0 && atexit(unload) == 0);
    load_library(file);
    open_and_meet(path, SK_WAIT_SPIN, &model, &context);
    CHECK(create(model, NULL, &other) == SK_OK && pthread_create(&thread, NULL, run_for_ever, other) == 0);
    while (__atomic_load_n(&started, __ATOMIC_ACQUIRE) == 0) usleep(100);
    CHECK(other_threads(1) == 3);
    begin_busy();
    CHECK(signal(SIGALRM, check_end) != SIG_ERR);
    ending = own_seconds();
    alarm(1);
    exit(0);
}

int main(int count, char** words) {
    CHECK(count == 4);
    alarm(700);
    snprintf(schedstat, sizeof schedstat, "/proc/self/task/%d/schedstat", (int)getpid());
    if (strcmp(words[1], "close") == 0) close_promptly(words[2], words[3]);
    else if (strcmp(words[1], "unload") == 0) unload_open(words[2], words[3]);
    else if (strcmp(words[1], "end") == 0) end_process(words[2], words[3]);
    else CHECK(0);
    return 0;
}
