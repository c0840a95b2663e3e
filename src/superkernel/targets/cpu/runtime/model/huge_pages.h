// huge_pages.h: memory and code on huge pages. After a pause a program finds its caches cold, and those of address
// translations as well: a page of 2 MB needs one translation where pages of 4 KB need five hundred.
#pragma once

#include <stddef.h>

namespace sk::model {

constexpr size_t kHugePage = size_t(2) << 20;

inline size_t whole_huge_pages(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// Zeroed memory of whole_huge_pages(bytes), in huge pages where the system has them; null: there is no memory.
// It is given back by munmap.
char* map_huge_pages(size_t bytes);

struct MemoryRange {
    const char* begin = nullptr;
    size_t bytes = 0;
};

// A loaded object whose code and constants have 2 MB of addresses for themselves, as package_link.py links them: they are
// copied to a huge page that takes their place. Other objects are left as they are, and so is everything where the system
// allows no code in memory of a program.
class HugeCode {
  public:
    explicit HugeCode(void* handle);  // of dlopen, before any other thread runs the code for the first time
    ~HugeCode();
    HugeCode(const HugeCode&) = delete;
    HugeCode& operator=(const HugeCode&) = delete;
    MemoryRange code() const { return code_; }  // and constants, also where they are not on a huge page

  private:
    void* base_;  // of the object; null: it is another one
    MemoryRange code_;
};

}  // namespace sk::model
