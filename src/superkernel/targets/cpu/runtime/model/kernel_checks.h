// kernel_checks.h: how a check inside compiled code of a package stops the call.
#pragma once

namespace sk::model {

using StopFunction = void (*)(const char* message);  // does not return
using StopSlot = StopFunction* (*)();  // of an object, for the calling thread: what a failed check calls

// Ends the calling core's part of the launch; the call returns SK_ERROR_KERNEL with the first message given.
[[noreturn]] void stop_kernel(const char* message);

}  // namespace sk::model
