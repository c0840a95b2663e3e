// library_lifetime.cpp: threads must not outlive the code that they run, nor hold up the end of the process.
//
// When the library is unloaded, its destructor ends the threads and waits for them. When the process ends, the threads go on,
// and nothing that they use is freed: other threads may be in calls. The order of two functions tells one from the other: at
// the end of the process, exit handlers that were added after the program began run before destructors; when the library is
// unloaded, its exit handlers run after its destructor.
#include "library_lifetime.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <atomic>

#include "handles.h"
#include "loader_turn.h"

namespace sk::model {
namespace {

std::atomic<bool> process_ends{false}, unloaded{false};

// A program may unload libraries while it ends.
void note_exit() {
    if (unloaded.load()) return;
    process_ends.store(true);
    keep_library();
}

__attribute__((destructor)) void end_library() {
    if (process_ends.load()) return;
    unloaded.store(true);
    Team::end_all();
    delete_closed_handles();
}

}  // namespace

void watch_exit() noexcept {
    static const int not_watched = atexit(note_exit);
    (void)not_watched;
}

// A program that is linked with the static library has no file to load here, and is never unloaded.
void keep_library() noexcept {
    static std::atomic<bool> kept{false};
    Dl_info found;
    if (kept.load() || dladdr(reinterpret_cast<void*>(&keep_library), &found) == 0 || found.dli_fname == nullptr) return;
    const LoaderTurn turn;
    if (dlopen(found.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) != nullptr) kept.store(true);
    dlerror();
}

}  // namespace sk::model
