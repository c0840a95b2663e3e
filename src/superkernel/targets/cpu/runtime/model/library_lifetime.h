// library_lifetime.h: what becomes of the library and its threads when it is unloaded, and when the process ends.
#pragma once

namespace sk::model {

// Before the first thread is started.
void watch_exit() noexcept;

// From now on the library stays in memory after dlclose, for threads that have not ended.
void keep_library() noexcept;

}  // namespace sk::model
