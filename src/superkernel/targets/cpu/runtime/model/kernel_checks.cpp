// kernel_checks.cpp: the functions of c10 that generated kernels call when a check fails, such as an index out of range.
#include "kernel_checks.h"

#include <stdint.h>
#include <stdlib.h>

#include <string>

#define SK_FOR_OBJECTS __attribute__((visibility("default"), noreturn))

namespace sk::model {

static thread_local StopFunction stop_here = nullptr;

[[noreturn]] static void stop(const char* message) {
    if (stop_here != nullptr) stop_here(message);
    abort();  // called by code that no call of this library runs
}

}  // namespace sk::model

extern "C" __attribute__((visibility("default"))) sk::model::StopFunction* sk_stop_function(void) {
    return &sk::model::stop_here;
}

namespace c10::detail {

SK_FOR_OBJECTS void torchCheckFail(const char* function, const char* file, uint32_t line, const char* message);
SK_FOR_OBJECTS void torchCheckFail(const char* function, const char* file, uint32_t line, const std::string& message);
SK_FOR_OBJECTS void torchInternalAssertFail(const char* function, const char* file, uint32_t line, const char* condition,
                                            const char* message);
SK_FOR_OBJECTS void torchInternalAssertFail(const char* function, const char* file, uint32_t line, const char* condition,
                                            const std::string& message);

void torchCheckFail(const char*, const char*, uint32_t, const char* message) { sk::model::stop(message); }

void torchCheckFail(const char*, const char*, uint32_t, const std::string& message) {
    sk::model::stop(message.c_str());
}

void torchInternalAssertFail(const char*, const char*, uint32_t, const char* condition, const char*) {
    sk::model::stop(condition);
}

void torchInternalAssertFail(const char*, const char*, uint32_t, const char* condition, const std::string&) {
    sk::model::stop(condition);
}

}  // namespace c10::detail
