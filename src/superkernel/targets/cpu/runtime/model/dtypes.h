// dtypes.h: element types: their names in manifests and in safetensors files, and their sizes.
#pragma once

#include <string>

#include "superkernel/model.h"

namespace sk::model {

struct DtypeRow {
    sk_dtype dtype;
    const char* name;
    const char* safetensors;
    int bytes;
};

const DtypeRow* find_dtype(sk_dtype dtype);                        // null: there is none
const DtypeRow* find_dtype(const std::string& name);               // as manifests spell it
const DtypeRow* find_safetensors_dtype(const std::string& name);   // as safetensors files spell it

}  // namespace sk::model
