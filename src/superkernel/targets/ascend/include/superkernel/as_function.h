// as_function.h: before every sub-kernel that comes as a source: what another kernel calls is a plain function.
// __global__ would make it an entry, which takes its parameters from the parameter block and sets up a stack, and
// KERNEL_TASK_TYPE_DEFAULT would give the object a launch type; the super kernel has both.
#pragma once

#include "kernel_operator.h"

#undef __global__
#define __global__
#undef KERNEL_TASK_TYPE_DEFAULT
#define KERNEL_TASK_TYPE_DEFAULT(type)
