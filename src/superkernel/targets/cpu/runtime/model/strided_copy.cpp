// strided_copy.cpp: the copies after the launches of a call, and the padding and cutting of buckets.
#include "strided_copy.h"

#include <string.h>

#include <algorithm>

namespace sk::model {
namespace {

void copy_axis(char* to, const char* from, const CopySpec& copy, size_t axis) {
    if (axis == copy.shape.size()) {
        memcpy(to, from, size_t(copy.itemsize));
        return;
    }
    const int64_t to_step = copy.to_strides[axis], from_step = copy.from_strides[axis], count = copy.shape[axis];
    const bool last = axis + 1 == copy.shape.size();
    if (last && to_step == copy.itemsize && from_step == copy.itemsize) {
        memmove(to, from, size_t(count * copy.itemsize));
        return;
    }
    for (int64_t i = 0; i < count; ++i) copy_axis(to + i * to_step, from + i * from_step, copy, axis + 1);
}

// A tensor as outer x axis x inner bytes.
struct Rows {
    int64_t outer = 1, inner;

    explicit Rows(const TensorSpec& tensor) : inner(int64_t(sk_dtype_bytes(tensor.dtype))) {
        for (int32_t axis = 0; axis < int32_t(tensor.shape.size()); ++axis) {
            if (axis < tensor.bucket_axis) outer *= tensor.shape[size_t(axis)];
            if (axis > tensor.bucket_axis) inner *= tensor.shape[size_t(axis)];
        }
    }
};

}  // namespace

void copy_strided(char* to, const char* from, const CopySpec& copy) {
    for (const int64_t size : copy.shape) {
        if (size == 0) return;
    }
    copy_axis(to, from, copy, 0);
}

void pad_bucket(char* to, const char* from, const TensorSpec& tensor, int64_t size) {
    const Rows rows(tensor);
    const size_t used = size_t(size * rows.inner), whole = size_t(tensor.shape[size_t(tensor.bucket_axis)] * rows.inner);
    for (int64_t i = 0; i < rows.outer; ++i, to += whole, from += used) {
        memcpy(to, from, used);
        for (size_t done = used; done < whole; done += std::min(done, whole - done)) {
            memcpy(to + done, to, std::min(done, whole - done));
        }
    }
}

void cut_bucket(char* to, const char* from, const TensorSpec& tensor, int64_t size) {
    const Rows rows(tensor);
    const size_t used = size_t(size * rows.inner), whole = size_t(tensor.shape[size_t(tensor.bucket_axis)] * rows.inner);
    for (int64_t i = 0; i < rows.outer; ++i, to += used, from += whole) memcpy(to, from, used);
}

}  // namespace sk::model
