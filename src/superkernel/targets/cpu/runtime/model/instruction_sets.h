// instruction_sets.h: the objects of a package and this processor -> the instruction set whose code is loaded.
#pragma once

#include <string>

#include "manifest.h"
#include "package_folder.h"

namespace sk::model {

// The most demanding instruction set of the package that this processor has. Takes shapes that are for others out of the
// manifest, and from every list of objects all but the one that is loaded.
std::string choose_instruction_set(Manifest& manifest, const PackageFolder& folder);

}  // namespace sk::model
