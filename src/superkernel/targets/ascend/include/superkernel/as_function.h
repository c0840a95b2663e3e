// as_function.h: before every sub-kernel that comes as a source: what another kernel calls is a plain function.
#pragma once

#include "kernel_operator.h"

// It would be an entry, which takes its parameters from the parameter block and sets up a stack.
#undef __global__
#define __global__
// It would give the object a launch type; the super kernel has one.
#undef KERNEL_TASK_TYPE_DEFAULT
#define KERNEL_TASK_TYPE_DEFAULT(type)
