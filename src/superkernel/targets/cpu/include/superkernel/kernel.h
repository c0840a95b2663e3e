// kernel.h: the functions that a CPU sub-kernel may call. Works in C and in C++.
//
// In a launch that is stopped (Ctrl-C, the watchdog) sync_all, wait_previous and set_next do not return: the inputs
// of the sub-kernel were never written. Hold no lock across them.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// neither changes during a call of the kernel, so the compiler may call it once
__attribute__((const)) int sk_block_idx(void);  // which block this call is, from 0
__attribute__((const)) int sk_block_num(void);  // how many blocks this op has
void sk_sync_all(void);        // returns when every block of this op has called it
void sk_wait_previous(void);   // returns when the producers of this op's inputs have stored them
void sk_set_next(void);        // this block will not touch a buffer any more
// The sub-kernel cannot continue: stops the launch, which then raises LaunchError with the first message given.
// Unlike the above it returns, so that destructors run; the sub-kernel should then return too.
void sk_fail(const char* message);

#ifdef __cplusplus
}

namespace sk {
inline int block_idx() { return sk_block_idx(); }
inline int block_num() { return sk_block_num(); }
inline void sync_all() { sk_sync_all(); }
inline void wait_previous() { sk_wait_previous(); }
inline void set_next() { sk_set_next(); }
inline void fail(const char* message) { sk_fail(message); }
template <class String>
auto fail(const String& message) -> decltype(sk_fail(message.c_str())) {
    sk_fail(message.c_str());
}
}  // namespace sk
#endif
