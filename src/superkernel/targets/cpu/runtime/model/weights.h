// weights.h: the safetensors file of a package, mapped: tensors by name.
#pragma once

#include <map>

#include "huge_pages.h"
#include "package_folder.h"
#include "superkernel/model.h"

namespace sk::model {

struct Weight {
    sk_dtype dtype;
    int64_t offset;  // in the file
    int64_t bytes;
};

class Weights {
  public:
    Weights() = default;
    Weights(const PackageFolder& folder, const char* relative, bool copied);

    const Weight* find(const std::string& name) const;  // null: there is none
    const char* data() const { return file_.data(); }   // of the file: offsets count from here
    size_t bytes() const { return file_.bytes(); }
    MemoryRange tensors() const { return {data() + first_, bytes() - first_}; }

  private:
    MappedFile file_;
    size_t first_ = 0;  // where the first tensor begins
    std::map<std::string, Weight> tensors_;
};

}  // namespace sk::model
