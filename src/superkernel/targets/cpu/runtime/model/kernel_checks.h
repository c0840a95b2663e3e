// kernel_checks.h: how a check or an exception inside compiled code of a package stops the call.
#pragma once

#include "../host/program.h"

namespace sk::model {

using StopFunction = void (*)(const char* message);  // does not return
using StopSlot = StopFunction* (*)();  // of an object, for the calling thread: what a failed check calls
// Calls the entry; false: it threw an exception, which was caught. Objects bring this function with them, because their C++
// library need not be the one of this library.
using EnterFunction = bool (*)(host::Entry entry, Launch* launch, int part);

// Ends the calling core's part of the launch; the call returns SK_ERROR_KERNEL with the first message given.
[[noreturn]] void stop_kernel(const char* message);

}  // namespace sk::model
