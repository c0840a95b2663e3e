// strided_copy.h: elements of one strided tensor -> another; and rows of a bucket -> a smaller or larger tensor.
#pragma once

#include <stdint.h>

#include <vector>

#include "manifest.h"

namespace sk::model {

void copy_strided(char* to, const char* from, const CopySpec& copy);

// Copies between a tensor of a bucket and one whose bucket dimension has `size` elements. pad: from the smaller one, and
// the rest repeats its rows, which raise no errors that these do not raise; cut: to the smaller one.
void pad_bucket(char* to, const char* from, const TensorSpec& tensor, int64_t size);
void cut_bucket(char* to, const char* from, const TensorSpec& tensor, int64_t size);

}  // namespace sk::model
