/* library_races.c: threads that close what others use, are cancelled, fork where an object is loaded, or end the process.
 *
 * program MODE PACKAGE [OBJECT]; prints nothing and ends with status 0 if all is well, else with the line that failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <superkernel/model.h>

#define CHECK(condition) do { if (!(condition)) _exit(__LINE__ % 250 + 1); } while (0)

enum { kThreads = 3, kRounds = 300 };

static const int64_t kTwo[] = {2};
static const char* path;
static sk_model* model;
static sk_context* context;
static pthread_barrier_t barrier;
static int closed = 0, ending = 0, calls = 0;

static sk_model* open_model(void) {
    sk_options options;
    sk_model* opened = NULL;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 1;
    CHECK(sk_model_open_with(path, &options, &opened) == SK_OK);
    return opened;
}

static sk_status count(sk_context* where) {
    float y[2];
    sk_tensor out;
    out.data = y;
    out.dtype = SK_FLOAT32;
    out.rank = 1;
    out.shape = kTwo;
    return sk_run(where, "count", NULL, &out);
}

/* The first thread runs one function, the others another one, all at once. */
static void run_together(void* (*first)(void*), void* (*others)(void*)) {
    pthread_t threads[kThreads];
    int i;
    for (i = 0; i < kThreads; ++i) CHECK(pthread_create(&threads[i], NULL, i == 0 ? first : others, NULL) == 0);
    for (i = 0; i < kThreads; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void* close_it(void* unused) {
    sk_status status;
    pthread_barrier_wait(&barrier);
    status = sk_model_close(model);
    CHECK(status == SK_OK || status == SK_ERROR_ARGUMENT || status == SK_ERROR_IN_USE);
    if (status == SK_OK) __atomic_add_fetch(&closed, 1, __ATOMIC_SEQ_CST);
    return unused;
}

static void* create_and_run(void* unused) {
    sk_context* made;
    sk_status status;
    int i;
    pthread_barrier_wait(&barrier);
    status = sk_context_create(model, NULL, &made);
    CHECK(status == SK_OK || status == SK_ERROR_ARGUMENT);
    for (i = 0; status == SK_OK && i < 20; ++i) CHECK(count(made) == SK_OK);
    CHECK(sk_context_destroy(made) == SK_OK);
    return unused;
}

static void* destroy_it(void* unused) {
    sk_status status;
    pthread_barrier_wait(&barrier);
    while (__atomic_load_n(&calls, __ATOMIC_RELAXED) < 20) continue;
    do status = sk_context_destroy(context);
    while (status == SK_ERROR_BUSY);
    CHECK(status == SK_OK);
    return unused;
}

static void* run_until_closed(void* unused) {
    sk_status status;
    pthread_barrier_wait(&barrier);
    do {
        status = count(context);
        CHECK(status == SK_OK || status == SK_ERROR_BUSY || status == SK_ERROR_ARGUMENT);
        if (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 500 == 0) usleep(100); /* otherwise it is rarely free */
    } while (status != SK_ERROR_ARGUMENT);
    return unused;
}

/* Of threads that close a model one does, and a context that another one creates keeps it open. */
static void close_races(void) {
    int round;
    for (round = 0; round < kRounds; ++round) {
        sk_model* more[kThreads];
        int i;
        model = open_model();
        closed = 0;
        run_together(close_it, round % 2 == 0 ? close_it : create_and_run);
        if (closed == 0) CHECK(round % 2 == 1 && sk_model_close(model) == SK_OK);
        CHECK(closed <= 1);
        for (i = 0; i < kThreads; ++i) more[i] = open_model();
        CHECK(more[0] != more[1] && more[1] != more[2] && more[0] != more[2]);
        for (i = 0; i < kThreads; ++i) CHECK(sk_model_close(more[i]) == SK_OK);
    }
}

/* A context is destroyed between calls of other threads, which then find it closed. */
static void destroy_races(void) {
    int round;
    model = open_model();
    for (round = 0; round < 3 * kRounds; ++round) {
        calls = 0;
        CHECK(sk_context_create(model, NULL, &context) == SK_OK);
        run_together(destroy_it, run_until_closed);
    }
    CHECK(sk_model_close(model) == SK_OK);
}

static void* open_and_close(void* unused) {
    while (__atomic_load_n(&ending, __ATOMIC_ACQUIRE) == 0) {
        sk_model* opened = open_model();
        CHECK(sk_model_close(opened) == SK_OK);
        pthread_testcancel();
    }
    return unused;
}

/* A thread that is cancelled ends between its calls. */
static void cancel(void) {
    int round;
    for (round = 0; round < 100; ++round) {
        const struct timespec pause = {0, 100000 + 17000 * (round % 100)};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, open_and_close, NULL) == 0);
        nanosleep(&pause, NULL);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    }
}

/* The constructor of an object forks, with the loader's lock, while threads wait for that to load packages. */
static void fork_in_constructor(const char* object) {
    pthread_t threads[kThreads];
    int i;
    for (i = 0; i < kThreads; ++i) CHECK(pthread_create(&threads[i], NULL, open_and_close, NULL) == 0);
    for (i = 0; i < 10; ++i) {
        void* loaded = dlopen(object, RTLD_NOW);
        CHECK(loaded != NULL && dlclose(loaded) == 0);
    }
    __atomic_store_n(&ending, 1, __ATOMIC_RELEASE);
    for (i = 0; i < kThreads; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* On a thread of the model as well. */
static void meet(sk_context* where) {
    int32_t x[2] = {1, 2}, y[2];
    sk_tensor in, out;
    in.data = x;
    in.dtype = SK_INT32;
    in.rank = 1;
    in.shape = kTwo;
    out = in;
    out.data = y;
    CHECK(sk_run(where, "meet", &in, &out) == SK_OK && y[0] == 12 && y[1] == 21);
}

static void* call_for_ever(void* unused) {
    sk_context* own;
    CHECK(sk_context_create(model, NULL, &own) == SK_OK);
    for (;;) meet(own);
    return unused;
}

static void* open_for_ever(void* unused) {
    for (;;) {
        sk_context* own;
        sk_model* opened = open_model();
        CHECK(sk_context_create(opened, NULL, &own) == SK_OK);
        meet(own);
        CHECK(sk_context_destroy(own) == SK_OK && sk_model_close(opened) == SK_OK);
    }
    return unused;
}

/* The process ends while threads call, open and close. */
static void end_meanwhile(void) {
    int round;
    for (round = 0; round < 120; ++round) {
        int status = -1;
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            pthread_t thread;
            alarm(600);
            model = open_model();
            CHECK(pthread_create(&thread, NULL, call_for_ever, NULL) == 0);
            CHECK(pthread_create(&thread, NULL, round % 2 == 0 ? call_for_ever : open_for_ever, NULL) == 0);
            usleep(200 * (round % 30));
            exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

int main(int words_count, char** words) {
    CHECK(words_count >= 3);
    alarm(700);
    path = words[2];
    CHECK(pthread_barrier_init(&barrier, NULL, kThreads) == 0);
    if (strcmp(words[1], "close") == 0) close_races();
    else if (strcmp(words[1], "destroy") == 0) destroy_races();
    else if (strcmp(words[1], "cancel") == 0) cancel();
    else if (strcmp(words[1], "constructor") == 0) fork_in_constructor(words[3]);
    else if (strcmp(words[1], "end") == 0) end_meanwhile();
    else CHECK(0);
    return 0;
}
