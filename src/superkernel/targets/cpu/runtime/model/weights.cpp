// weights.cpp: a safetensors file -> its tensors, mapped without being read, every offset inside the file.
#include "weights.h"

#include <string.h>

#include <algorithm>

#include "dtypes.h"
#include "json.h"

namespace sk::model {

constexpr size_t kLengthBytes = 8;
constexpr int64_t kSmallBytes = int64_t(8) << 20;  // of tensors
constexpr uint64_t kMostHeaderBytes = uint64_t(100) << 20;  // as the format says

// The product, or -1 if it is too large for a file.
static int64_t product(const std::vector<int64_t>& shape, int64_t itemsize) {
    int64_t bytes = itemsize;
    for (const int64_t size : shape) {
        if (__builtin_mul_overflow(bytes, size, &bytes)) return -1;
    }
    return bytes;
}

Weights::Weights(const PackageFolder& folder, const char* relative, bool copied)
    : file_(folder.open(relative), relative) {
    uint64_t header_bytes = 0;
    if (file_.bytes() >= kLengthBytes) memcpy(&header_bytes, file_.data(), kLengthBytes);
    if (file_.bytes() < kLengthBytes || header_bytes > kMostHeaderBytes || header_bytes > file_.bytes() - kLengthBytes) {
        fail(SK_ERROR_CORRUPT, "the package '%s': %s is not a safetensors file, or truncated; export it again",
             folder.path(), relative);
    }
    const Json parsed = parse_json(std::string(file_.data() + kLengthBytes, size_t(header_bytes)), relative);
    const Field header(parsed, relative);
    const int64_t begin = int64_t(kLengthBytes + header_bytes), room = int64_t(file_.bytes()) - begin;
    for (size_t i = 0; i < header.member_count(); ++i) {
        const Field tensor = header.member(i);
        if (strcmp(tensor.name(), "__metadata__") == 0) continue;
        const Field dtype = tensor.at("dtype"), place = tensor.at("data_offsets");
        const DtypeRow* const row = find_safetensors_dtype(dtype.text());
        if (row == nullptr) dtype.refuse("'%s' is not a dtype of this version", dtype.text().c_str());
        const std::vector<int64_t> ends = place.integers(0, room);
        if (ends.size() != 2 || ends[0] > ends[1]) place.refuse("these are not two rising offsets");
        if (product(tensor.at("shape").integers(0, INT64_MAX), row->bytes) != ends[1] - ends[0]) {
            tensor.refuse("shape and offsets contradict each other");
        }
        tensors_.emplace(tensor.name(), Weight{row->dtype, begin + ends[0], ends[1] - ends[0]});
    }
    first_ = file_.bytes();
    for (const auto& [name, tensor] : tensors_) first_ = std::min(first_, size_t(tensor.offset));
    // a copy of a few megabytes takes less than what the weights gain from huge pages after a pause
    if (copied || room <= kSmallBytes) {
        file_.replace_by_copy(first_);
    } else {
        file_.advise_huge_pages();
    }
}

const Weight* Weights::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace sk::model
