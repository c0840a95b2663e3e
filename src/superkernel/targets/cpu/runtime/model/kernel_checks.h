// kernel_checks.h: how a check inside compiled code of a package stops the call.
//
// A process may hold several copies of this library: a program's, and that of a package that Python has loaded. The loader
// gives the functions of one copy to the code of all packages, so that copy must know which copy runs the calling thread.
#pragma once

namespace sk::model {

using StopFunction = void (*)(const char* message);  // does not return
using StopSlot = StopFunction* (*)();                // of the calling thread: what a failed check calls

// Ends the calling core's part of the launch; the call returns SK_ERROR_KERNEL with the first message given.
[[noreturn]] void stop_kernel(const char* message);

}  // namespace sk::model

extern "C" sk::model::StopFunction* sk_stop_function(void);
