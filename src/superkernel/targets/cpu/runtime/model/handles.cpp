// handles.cpp: the models and contexts of the process; what happens to them around a fork and when the library goes.
#include "handles.h"

#include <pthread.h>

#include <mutex>
#include <utility>
#include <vector>

#include "../host/formation.h"
#include "failure.h"
#include "loader_turn.h"

namespace sk::model {
namespace {

constexpr uint32_t kModelKind = 0x736b6d6f, kContextKind = 0x736b6378;

template <class Handle>
struct Table {
    std::vector<Handle*> all, unused;
};

std::mutex mutex;
// behind pointers: a thread may run a model while the process ends
auto& models = *new Table<sk_model>;
auto& contexts = *new Table<sk_context>;

void before_fork() {
    mutex.lock();
    Team::before_fork();
    LoaderTurn::before_fork();
}

void after_fork_in_parent() {
    LoaderTurn::after_fork(false);
    Team::after_fork(false);
    mutex.unlock();
}

void after_fork_in_child() {
    LoaderTurn::after_fork(true);
    Team::after_fork(true);
    host::forget_load();
    for (sk_context* handle : contexts.all) {
        if (handle->busy.exchange(false)) handle->torn = true;
    }
    mutex.unlock();
}

// Registered when the library is loaded: at a first call, a fork in another thread could see it half done.
const int not_watched = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

template <class Handle, class Target>
Handle* add(Table<Handle>& table, uint32_t kind, std::unique_ptr<Target> target) {
    const std::lock_guard<std::mutex> hold(mutex);
    if (table.unused.empty()) {
        auto handle = std::make_unique<Handle>();
        handle->kind = kind;
        table.all.reserve(table.all.size() + 1);
        table.unused.reserve(table.all.size() + 1);
        table.all.push_back(handle.get());
        table.unused.push_back(handle.release());
    }
    Handle* const handle = table.unused.back();
    table.unused.pop_back();
    handle->target = target.release();
    return handle;
}

// Later handles use the records of closed ones again, the oldest first.
template <class Handle>
void give_back(Table<Handle>& table, Handle* handle) {
    table.unused.insert(table.unused.begin(), handle);
}

template <class Handle>
void check_kind(const Handle* handle, uint32_t kind, const char* what) {
    if (handle == nullptr) fail(SK_ERROR_ARGUMENT, "the %s is null", what);
    if (handle->kind != kind) fail(SK_ERROR_ARGUMENT, "this is not a %s", what);
}

}  // namespace

void delete_closed_handles() noexcept {
    const std::lock_guard<std::mutex> hold(mutex);
    for (sk_model* handle : models.unused) delete handle;
    for (sk_context* handle : contexts.unused) delete handle;
    models.unused.clear();
    contexts.unused.clear();
}

void check_forks_are_watched() {
    if (not_watched != 0) throw std::bad_alloc();
}

sk_model* add_handle(std::unique_ptr<OpenModel> model) { return add(models, kModelKind, std::move(model)); }

sk_context* add_handle(std::unique_ptr<RunContext> context) {
    sk_context* const handle = add(contexts, kContextKind, std::move(context));
    handle->torn = false;
    return handle;
}

OpenModel& opened(const sk_model* handle) {
    check_kind(handle, kModelKind, "model");
    if (handle->target == nullptr) fail(SK_ERROR_ARGUMENT, "the model is closed");
    return *handle->target;
}

ModelUse use(const sk_model* handle) {
    const std::lock_guard<std::mutex> hold(mutex);
    return ModelUse(opened(handle));
}

void close_handle(sk_model* handle) {
    std::unique_ptr<OpenModel> model;
    const std::lock_guard<std::mutex> hold(mutex);
    const int uses = opened(handle).uses.load();
    if (uses > 0) fail(SK_ERROR_IN_USE, "the model has %d contexts; destroy them before it is closed", uses);
    model.reset(std::exchange(handle->target, nullptr));
    give_back(models, handle);
}

void destroy_handle(sk_context* handle) {
    {
        const Turn turn(handle, true);
        const std::unique_ptr<RunContext> context(std::exchange(handle->target, nullptr));
    }
    const std::lock_guard<std::mutex> hold(mutex);
    give_back(contexts, handle);
}

// The record outlives the context: a thread that comes while another one destroys it finds it busy, or closed.
SK_CALL_PATH Turn::Turn(sk_context* context, bool torn_as_well) : context_(context) {
    check_kind(context, kContextKind, "context");
    if (context->busy.exchange(true, std::memory_order_acquire)) {
        fail(SK_ERROR_BUSY, "another thread is running in this context; give every thread a context of its own");
    }
    const bool closed = context->target == nullptr;
    if (__builtin_expect(!closed && (!context->torn || torn_as_well), 1)) return;
    context->busy.store(false, std::memory_order_release);
    if (closed) fail(SK_ERROR_ARGUMENT, "the context is closed");
    fail(SK_ERROR_FORKED, "another thread was running in this context when the process was forked; create a new context");
}

}  // namespace sk::model
