// failure.cpp: what went wrong -> a status, and a sentence that the failing thread can read.
#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace sk::model {

constexpr size_t kSentenceBytes = 4096;

static thread_local char last_sentence[kSentenceBytes] = "";

void fail(sk_status status, const char* format, ...) {
    char text[kSentenceBytes];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    throw Failure{status, text};
}

sk_status remember(sk_status status, const char* sentence) noexcept {
    strncpy(last_sentence, sentence, kSentenceBytes - 1);
    return status;
}

}  // namespace sk::model

extern "C" {

const char* sk_last_error(void) { return sk::model::last_sentence; }

const char* sk_status_name(sk_status status) {
    static const char* const kNames[] = {
        "SK_OK",         "SK_ERROR_ARGUMENT",    "SK_ERROR_NOT_A_PACKAGE", "SK_ERROR_VERSION",       "SK_ERROR_CORRUPT",
        "SK_ERROR_IO",   "SK_ERROR_PATH",        "SK_ERROR_UNSUPPORTED",   "SK_ERROR_LOAD",          "SK_ERROR_NO_SUCH_ENTRY",
        "SK_ERROR_NO_SUCH_STATE", "SK_ERROR_DTYPE", "SK_ERROR_SHAPE",      "SK_ERROR_ALIAS",         "SK_ERROR_BUSY",
        "SK_ERROR_IN_USE", "SK_ERROR_WRONG_MODEL", "SK_ERROR_KERNEL",      "SK_ERROR_FORKED",        "SK_ERROR_MEMORY",
        "SK_ERROR_SYSTEM", "SK_ERROR_INTERNAL",
    };
    const unsigned number = unsigned(status);
    return number < sizeof kNames / sizeof *kNames ? kNames[number] : "unknown status";
}
}
