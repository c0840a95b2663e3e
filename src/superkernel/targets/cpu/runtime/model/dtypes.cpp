// dtypes.cpp: the table of element types.
#include "dtypes.h"

namespace sk::model {

static const DtypeRow kRows[] = {
    {SK_FLOAT32, "float32", "F32", 4}, {SK_FLOAT64, "float64", "F64", 8},   {SK_FLOAT16, "float16", "F16", 2},
    {SK_BFLOAT16, "bfloat16", "BF16", 2}, {SK_INT8, "int8", "I8", 1},       {SK_UINT8, "uint8", "U8", 1},
    {SK_INT16, "int16", "I16", 2},     {SK_INT32, "int32", "I32", 4},       {SK_INT64, "int64", "I64", 8},
    {SK_BOOL, "bool", "BOOL", 1},
};

const DtypeRow* find_dtype(sk_dtype dtype) {
    for (const DtypeRow& row : kRows) {
        if (row.dtype == dtype) return &row;
    }
    return nullptr;
}

const DtypeRow* find_dtype(const std::string& name) {
    for (const DtypeRow& row : kRows) {
        if (name == row.name) return &row;
    }
    return nullptr;
}

const DtypeRow* find_safetensors_dtype(const std::string& name) {
    for (const DtypeRow& row : kRows) {
        if (name == row.safetensors) return &row;
    }
    return nullptr;
}

}  // namespace sk::model

extern "C" {

const char* sk_dtype_name(sk_dtype dtype) {
    const auto* row = sk::model::find_dtype(dtype);
    return row == nullptr ? "unknown dtype" : row->name;
}

size_t sk_dtype_bytes(sk_dtype dtype) {
    const auto* row = sk::model::find_dtype(dtype);
    return row == nullptr ? 0 : size_t(row->bytes);
}
}
