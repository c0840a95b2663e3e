/* library_processes.c: what libsuperkernel does to a process: forks, threads, damaged packages, the end.
 *
 * program MODE PACKAGE...; prints nothing and ends with status 0 if all is well, else with the line that failed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <superkernel/model.h>

#define CHECK(condition) do { if (!(condition)) _exit(__LINE__ % 250 + 1); } while (0)

static const int64_t kEight[] = {8}, kTwo[] = {2}, kOne[] = {1};
static int32_t go = 0, started = 0;

static sk_tensor vector(void* data, sk_dtype dtype, const int64_t* shape) {
    sk_tensor tensor;
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = 1;
    tensor.shape = shape;
    return tensor;
}

static sk_model* open_model(const char* path, int wait) {
    sk_options options;
    sk_model* model = NULL;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 2;
    options.wait = wait;
    CHECK(sk_model_open_with(path, &options, &model) == SK_OK);
    return model;
}

static sk_context* make_context(sk_model* model) {
    sk_context* context = NULL;
    CHECK(sk_context_create(model, NULL, &context) == SK_OK);
    return context;
}

static void add_every(sk_context* context, long pause_ns) {
    const struct timespec pause = {0, pause_ns};
    float x[8], y[8];
    int i, call;
    for (call = 0; call < 100; ++call) {
        if (pause_ns > 0) nanosleep(&pause, NULL);
        sk_tensor in = vector(x, SK_FLOAT32, kEight), out = vector(y, SK_FLOAT32, kEight);
        for (i = 0; i < 8; ++i) x[i] = (float)(i + call);
        CHECK(sk_run(context, "add", &in, &out) == SK_OK);
        for (i = 0; i < 8; ++i) CHECK(y[i] == (float)(11 * (7 - i) + call));
    }
}

static void add(sk_context* context) { add_every(context, 0); }

static sk_status meet(sk_context* context) {
    int32_t x[2] = {1, 2}, y[2];
    sk_tensor in = vector(x, SK_INT32, kTwo), out = vector(y, SK_INT32, kTwo);
    return sk_run(context, "meet", &in, &out);
}

static void* run_long(void* context) {
    sk_tensor in = vector(&go, SK_INT32, kOne), out = vector(&started, SK_INT32, kOne);
    CHECK(sk_run((sk_context*)context, "wait", &in, &out) == SK_OK);
    return NULL;
}

static pthread_t begin_long(sk_context* context) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_long, context) == 0);
    while (__atomic_load_n(&started, __ATOMIC_ACQUIRE) == 0) usleep(100);
    return thread;
}

static void end_long(pthread_t thread) {
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(thread, NULL) == 0);
}

static int thread_count(void) {
    DIR* folder = opendir("/proc/self/task");
    int count = -2;
    CHECK(folder != NULL);
    while (readdir(folder) != NULL) ++count;
    closedir(folder);
    return count;
}

/* Two threads in one context: the second one is refused, and so is the destruction of the context. */
static void busy(const char* path) {
    sk_model* model = open_model(path, SK_WAIT_BALANCED);
    sk_context *context = make_context(model), *other = make_context(model);
    float y[2];
    sk_tensor out = vector(y, SK_FLOAT32, kTwo);
    pthread_t thread = begin_long(context);
    CHECK(sk_run(context, "count", NULL, &out) == SK_ERROR_BUSY);
    CHECK(strstr(sk_last_error(), "context of its own") != NULL);
    CHECK(sk_context_reset(context) == SK_ERROR_BUSY);
    CHECK(sk_context_destroy(context) == SK_ERROR_BUSY);
    CHECK(sk_run(other, "count", NULL, &out) == SK_OK && y[0] == 6);
    end_long(thread);
    CHECK(sk_run(context, "count", NULL, &out) == SK_OK && y[0] == 6);
    CHECK(sk_context_destroy(context) == SK_OK && sk_context_destroy(other) == SK_OK && sk_model_close(model) == SK_OK);
}

/* In the child calls run on the calling thread; what cannot is refused. The parent goes on. */
static void forked(const char* path) {
    sk_model* model = open_model(path, SK_WAIT_SPIN);
    sk_context *context = make_context(model), *running = make_context(model);
    pthread_t thread = begin_long(running);
    pid_t child;
    int status = -1;
    add(context);
    CHECK(thread_count() == 4); /* this one, the one that runs, the model's, and the one that keeps a processor awake */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(thread_count() == 1);
        add(context);
        CHECK(thread_count() == 1);
        CHECK(meet(context) == SK_ERROR_FORKED && strstr(sk_last_error(), "forked") != NULL);
        CHECK(sk_context_reset(running) == SK_ERROR_FORKED);
        CHECK(sk_context_destroy(context) == SK_OK && sk_context_destroy(running) == SK_OK);
        context = make_context(model);
        add(context);
        CHECK(sk_context_destroy(context) == SK_OK && sk_model_close(model) == SK_OK);
        model = open_model(path, SK_WAIT_BALANCED); /* has threads of its own */
        context = make_context(model);
        add(context);
        CHECK(meet(context) == SK_OK && thread_count() == 2);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    add(context);
    CHECK(meet(context) == SK_OK);
    end_long(thread);
    CHECK(sk_context_destroy(context) == SK_OK && sk_context_destroy(running) == SK_OK && sk_model_close(model) == SK_OK);
    while (thread_count() > 1) usleep(1000); /* the system removes threads a moment after they were joined */
}

static int ending = 0;

static void* open_and_close(void* path) {
    while (__atomic_load_n(&ending, __ATOMIC_ACQUIRE) == 0) CHECK(sk_model_close(open_model((const char*)path, SK_WAIT_SLEEP)) == SK_OK);
    return NULL;
}

/* A fork while other threads load and unload code: the child does the same. */
static void forked_meanwhile(const char* path) {
    pthread_t threads[2];
    int i, status = -1;
    for (i = 0; i < 2; ++i) CHECK(pthread_create(&threads[i], NULL, open_and_close, (void*)path) == 0);
    for (i = 0; i < 60; ++i) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(600);
            add(make_context(open_model(path, SK_WAIT_SLEEP)));
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    __atomic_store_n(&ending, 1, __ATOMIC_RELEASE);
    for (i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void* meet_deeply(void* path) {
    sk_model* model = open_model((const char*)path, SK_WAIT_BALANCED);
    sk_context* context = make_context(model);
    CHECK(meet(context) == SK_OK);
    CHECK(sk_context_destroy(context) == SK_OK && sk_model_close(model) == SK_OK);
    return NULL;
}

/* Threads have small stacks by default, only that of the caller is large. */
static void small_stacks(const char* path) {
    pthread_attr_t small, large;
    pthread_t thread;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 64 << 10) == 0);
    CHECK(pthread_setattr_default_np(&small) == 0);
    CHECK(pthread_attr_init(&large) == 0 && pthread_attr_setstacksize(&large, 1 << 20) == 0);
    CHECK(pthread_create(&thread, &large, meet_deeply, (void*)path) == 0 && pthread_join(thread, NULL) == 0);
}

/* The process ends while a model is open and its threads wait. */
static void left_open(const char* path) { add(make_context(open_model(path, SK_WAIT_SPIN))); }

static void* run_own_context(void* model) {
    sk_context* context = make_context((sk_model*)model);
    int i;
    for (i = 0; i < 20; ++i) {
        add(context);
        CHECK(meet(context) == SK_OK);
    }
    CHECK(sk_context_destroy(context) == SK_OK);
    return NULL;
}

/* Threads with contexts of their own share a model and its threads. */
static void parallel(const char* path, int wait) {
    sk_model* model = open_model(path, wait);
    pthread_t threads[3];
    int i;
    for (i = 0; i < 3; ++i) CHECK(pthread_create(&threads[i], NULL, run_own_context, model) == 0);
    for (i = 0; i < 3; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(sk_model_close(model) == SK_OK);
}

static void* run_steadily(void* model) {
    sk_context* context = make_context((sk_model*)model);
    add_every(context, 1000000);
    CHECK(sk_context_destroy(context) == SK_OK);
    return NULL;
}

/* Calls at a rate, by one thread and by two: the threads of the model wake up before the next one. */
static void steady(const char* path) {
    sk_model* model = open_model(path, SK_WAIT_BALANCED);
    pthread_t other;
    run_steadily(model);
    CHECK(pthread_create(&other, NULL, run_steadily, model) == 0);
    run_steadily(model);
    CHECK(pthread_join(other, NULL) == 0);
    CHECK(sk_model_close(model) == SK_OK);
}

/* One processor for all threads, of which none is taken off it for another one. */
static void real_time(const char* path) {
    struct sched_param priority;
    cpu_set_t set;
    int wait;
    memset(&priority, 0, sizeof priority);
    priority.sched_priority = 1;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
    if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0) return; /* is not permitted */
    alarm(600);
    for (wait = SK_WAIT_BALANCED; wait <= SK_WAIT_SLEEP; ++wait) {
        sk_model* model = open_model(path, wait);
        sk_context* context = make_context(model);
        int call;
        for (call = 0; call < 20; ++call) CHECK(meet(context) == SK_OK);
        add_every(context, 1000000);
        CHECK(sk_context_destroy(context) == SK_OK && sk_model_close(model) == SK_OK);
    }
}

/* Threads of OpenMP call the library, between parallel regions of their own. */
static void with_openmp(const char* path) {
    sk_model* model = open_model(path, SK_WAIT_BALANCED);
    int call, sum;
    for (call = 0; call < 5; ++call) {
        sum = 0;
#pragma omp parallel num_threads(3) reduction(+ : sum)
        {
            sk_context* context = make_context(model);
            add(context);
            CHECK(meet(context) == SK_OK);
            CHECK(sk_context_destroy(context) == SK_OK);
            sum += 1;
        }
        CHECK(sum == 3);
    }
    CHECK(sk_model_close(model) == SK_OK);
}

static void** make_memory(const sk_tensor_info* infos, int32_t count) {
    void** memory = calloc((size_t)count + 1, sizeof *memory);
    int32_t i;
    for (i = 0; i < count; ++i) memory[i] = calloc(infos[i].bytes + 1, 1);
    return memory;
}

static void free_memory(void** memory, int32_t count) {
    int32_t i;
    for (i = 0; i < count; ++i) free(memory[i]);
    free(memory);
}

/* Every shape of every entry, on zeros. */
static void run_entries(sk_model* model, sk_context* context) {
    sk_model_info info;
    const sk_entry_info* entry;
    int32_t i, k, call;
    CHECK(sk_model_describe(model, &info) == SK_OK);
    for (i = 0; i < info.entry_count; ++i) {
        CHECK(sk_model_entry(model, i, &entry) == SK_OK);
        for (k = 0; k < entry->shape_count; ++k) {
            const sk_shape_info* shape = &entry->shapes[k];
            void** inputs = make_memory(shape->inputs, shape->input_count);
            void** outputs = make_memory(shape->outputs, shape->output_count);
            for (call = 0; call < 30; ++call) {
                if (sk_run_index(context, i, k, inputs, outputs) != SK_OK) CHECK(sk_last_error()[0] != 0);
            }
            free_memory(inputs, shape->input_count);
            free_memory(outputs, shape->output_count);
        }
    }
}

/* Packages that may be damaged: they open, or there is a sentence. With `runs`, those that open are run. */
static void open_all(char** paths, int count, int runs) {
    sk_model* model;
    sk_context* context;
    int i;
    for (i = 0; i < count; ++i) {
        if (sk_package_verify(paths[i]) != SK_OK) CHECK(sk_last_error()[0] != 0);
        if (sk_model_open(paths[i], &model) != SK_OK) {
            CHECK(sk_last_error()[0] != 0 && model == NULL);
            continue;
        }
        if (sk_context_create(model, NULL, &context) != SK_OK) CHECK(sk_last_error()[0] != 0 && context == NULL);
        if (runs && context != NULL) run_entries(model, context);
        CHECK(sk_context_destroy(context) == SK_OK && sk_model_close(model) == SK_OK);
    }
}

int main(int count, char** words) {
    CHECK(count >= 3);
    alarm(700);
    if (strcmp(words[1], "busy") == 0) busy(words[2]);
    else if (strcmp(words[1], "fork") == 0) forked(words[2]);
    else if (strcmp(words[1], "fork meanwhile") == 0) forked_meanwhile(words[2]);
    else if (strcmp(words[1], "small stacks") == 0) small_stacks(words[2]);
    else if (strcmp(words[1], "left open") == 0) left_open(words[2]);
    else if (strcmp(words[1], "parallel") == 0) parallel(words[2], SK_WAIT_BALANCED), parallel(words[2], SK_WAIT_SLEEP);
    else if (strcmp(words[1], "steady") == 0) steady(words[2]);
    else if (strcmp(words[1], "real time") == 0) real_time(words[2]);
    else if (strcmp(words[1], "openmp") == 0) with_openmp(words[2]);
    else if (strcmp(words[1], "open") == 0) open_all(words + 2, count - 2, 0);
    else if (strcmp(words[1], "run") == 0) open_all(words + 2, count - 2, 1);
    else CHECK(0);
    return 0;
}
