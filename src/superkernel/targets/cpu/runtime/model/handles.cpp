// handles.cpp: the models and contexts of the process; what happens to them around a fork and when the library goes.
#include "handles.h"

#include <pthread.h>

#include <mutex>
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
    LoaderTurn::after_fork();
    Team::after_fork(false);
    mutex.unlock();
}

void after_fork_in_child() {
    LoaderTurn::after_fork();
    Team::after_fork(true);
    host::forget_load();
    for (sk_context* handle : contexts.all) {
        if (handle->target != nullptr) handle->target->note_fork();
    }
    mutex.unlock();
}

// When the library is loaded: a fork that another thread's first call meets would find it half done.
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

template <class Target, class Handle>
std::unique_ptr<Target> remove(Table<Handle>& table, Handle* handle) {
    const std::lock_guard<std::mutex> hold(mutex);
    std::unique_ptr<Target> target(handle->target);
    handle->target = nullptr;
    table.unused.insert(table.unused.begin(), handle);  // the one that was closed first is taken first
    return target;
}

template <class Handle>
auto& target_of(const Handle* handle, uint32_t kind, const char* what) {
    if (handle == nullptr) fail(SK_ERROR_ARGUMENT, "the %s is null", what);
    if (handle->kind != kind) fail(SK_ERROR_ARGUMENT, "this is not a %s", what);
    if (handle->target == nullptr) fail(SK_ERROR_ARGUMENT, "the %s is closed", what);
    return *handle->target;
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
sk_context* add_handle(std::unique_ptr<RunContext> context) { return add(contexts, kContextKind, std::move(context)); }

std::unique_ptr<OpenModel> remove_handle(sk_model* handle) { return remove<OpenModel>(models, handle); }
std::unique_ptr<RunContext> remove_handle(sk_context* handle) { return remove<RunContext>(contexts, handle); }

OpenModel& opened(const sk_model* handle) { return target_of(handle, kModelKind, "model"); }
SK_CALL_PATH RunContext& opened(const sk_context* handle) { return target_of(handle, kContextKind, "context"); }

}  // namespace sk::model
