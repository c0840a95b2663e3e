// processor_flags.h: what this processor has, by the names of /proc/cpuinfo.
#pragma once

#include <set>
#include <string>

namespace sk::model {

// Those of the file, which leaves out what the system does not want to be used, less those that the processor does not tell:
// an emulator shows the file of its host. Without the file, what the processor tells.
std::set<std::string> processor_flags(const char* cpuinfo = "/proc/cpuinfo");

}  // namespace sk::model
