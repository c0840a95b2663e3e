// cancellation.h: pthread_cancel must not end a thread inside: it would unwind frames that no exception may leave.
#pragma once

#include <pthread.h>

namespace sk::host {

// While it lives, functions that wait, open or read are no points where the calling thread is cancelled.
class WithoutCancellation {
  public:
    WithoutCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~WithoutCancellation() { pthread_setcancelstate(before_, nullptr); }
    WithoutCancellation(const WithoutCancellation&) = delete;

  private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace sk::host
