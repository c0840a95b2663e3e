// kernel_checks.cpp: the functions of c10 that generated kernels call when a check fails, such as an index out of range.
//
// It becomes part of every object of a package that needs it, so that no symbol of c10 is visible to the process: torch,
// loaded later, must find its own. libsuperkernel asks the object for the slot, and sets it before it runs the code.
#include <stdint.h>
#include <stdlib.h>

#include <string>

#define SK_HIDDEN __attribute__((visibility("hidden"), noreturn))

using StopFunction = void (*)(const char* message);  // does not return

static thread_local StopFunction stop_here = nullptr;

extern "C" __attribute__((visibility("default"))) StopFunction* sk_stop_slot(void) { return &stop_here; }

[[noreturn]] static void stop(const char* message) {
    if (stop_here != nullptr) stop_here(message);
    abort();  // the code was called without libsuperkernel
}

namespace c10::detail {

SK_HIDDEN void torchCheckFail(const char* function, const char* file, uint32_t line, const char* message);
SK_HIDDEN void torchCheckFail(const char* function, const char* file, uint32_t line, const std::string& message);
SK_HIDDEN void torchInternalAssertFail(const char* function, const char* file, uint32_t line, const char* condition,
                                       const char* message);
SK_HIDDEN void torchInternalAssertFail(const char* function, const char* file, uint32_t line, const char* condition,
                                       const std::string& message);

void torchCheckFail(const char*, const char*, uint32_t, const char* message) { stop(message); }
void torchCheckFail(const char*, const char*, uint32_t, const std::string& message) { stop(message.c_str()); }
void torchInternalAssertFail(const char*, const char*, uint32_t, const char* condition, const char*) { stop(condition); }
void torchInternalAssertFail(const char*, const char*, uint32_t, const char* condition, const std::string&) {
    stop(condition);
}

}  // namespace c10::detail
