// failure.h: errors of the library: thrown inside, turned into a status and a sentence where a call of the API ends.
#pragma once

#include <new>
#include <string>

#include "../host/cancellation.h"
#include "superkernel/model.h"

namespace sk::model {

struct Failure {
    sk_status status;
    std::string sentence;
};

// What every call runs: these functions lie beside each other, so that a call after a pause finds them on few cold pages.
#define SK_CALL_PATH __attribute__((section(".text.hot.call")))

[[noreturn]] void fail(sk_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Keeps the sentence for the calling thread.
sk_status remember(sk_status status, const char* sentence) noexcept;

// Calls `body`; whatever it throws becomes a status.
template <class Body>
sk_status guarded_run(Body body) noexcept {
    try {
        body();
        return SK_OK;
    } catch (const Failure& failure) {
        return remember(failure.status, failure.sentence.c_str());
    } catch (const std::bad_alloc&) {
        return remember(SK_ERROR_MEMORY, "out of memory");
    } catch (...) {
        return remember(SK_ERROR_INTERNAL, "an unexpected error inside the library; please report it");
    }
}

// The same of what opens, reads or waits, which a run does not.
template <class Body>
sk_status guarded(Body body) noexcept {
    const host::WithoutCancellation here;
    return guarded_run(body);
}

}  // namespace sk::model
