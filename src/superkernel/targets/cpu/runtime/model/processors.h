// processors.h: how many processors this process may use.
#pragma once

namespace sk::model {

int processor_quota();  // of the control groups, rounded down, at least 1; 0: there is none
int usable_processors();  // by affinity and quota

}  // namespace sk::model
