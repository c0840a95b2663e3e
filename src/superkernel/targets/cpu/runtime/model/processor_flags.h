// processor_flags.h: what this processor has, by the names of /proc/cpuinfo.
#pragma once

#include <set>
#include <string>

namespace sk::model {

// The flags of /proc/cpuinfo, which leaves out what the system has disabled, without those that CPUID does not report: under
// an emulator the file is that of the host. Where the file cannot be read, the flags of CPUID.
std::set<std::string> processor_flags(const char* cpuinfo = "/proc/cpuinfo");

}  // namespace sk::model
