// huge_pages.cpp: sizes and loaded objects -> huge pages.
#include "huge_pages.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

namespace sk::model {
namespace {

struct Segment {
    uintptr_t base;  // of the object
    const char* begin = nullptr;
    size_t bytes = 0;
    bool alone = false;  // code and constants, nothing else within its huge page
};

// The first segment of the object at `base`.
int find_first_segment(dl_phdr_info* info, size_t, void* data) {
    Segment& found = *static_cast<Segment*>(data);
    if (info->dlpi_addr != found.base) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        if (header.p_type != PT_LOAD) continue;
        const bool is_code = (header.p_flags & PF_X) != 0 && (header.p_flags & PF_W) == 0;
        found.begin = reinterpret_cast<const char*>(found.base + header.p_vaddr);
        found.bytes = header.p_memsz;
        // an old loader ignores the alignment
        found.alone = is_code && header.p_align == kHugePage && (found.base + header.p_vaddr) % kHugePage == 0;
        return 1;
    }
    return 1;
}

void replace_by_huge_page(const Segment& segment) {
    char* const copy = map_huge_pages(segment.bytes);
    if (copy == nullptr) return;
    memcpy(copy, segment.begin, segment.bytes);
    const size_t bytes = whole_huge_pages(segment.bytes);
    if (mprotect(copy, bytes, PROT_READ | PROT_EXEC) == 0 &&
        mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, const_cast<char*>(segment.begin)) != MAP_FAILED) {
        return;
    }
    munmap(copy, bytes);
}

std::mutex code_mutex;
// The number of models that use the object at an address. The system's loader loads a file once; its code is moved to a huge
// page before the first model runs it. Allocated by the first model.
std::map<void*, int>* code_users = nullptr;

}  // namespace

char* map_huge_pages(size_t bytes) {
    const size_t used = whole_huge_pages(bytes), room = used + kHugePage;
    void* const mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    // the ends beyond whole huge pages go back
    const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped);
    const uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
    if (aligned > begin) munmap(mapped, aligned - begin);
    if (begin + room > aligned + used) munmap(reinterpret_cast<void*>(aligned + used), begin + room - aligned - used);
    madvise(reinterpret_cast<void*>(aligned), used, MADV_HUGEPAGE);
    return reinterpret_cast<char*>(aligned);
}

HugeCode::HugeCode(void* handle) : base_(nullptr) {
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return;
    Segment segment{map->l_addr};
    dl_iterate_phdr(find_first_segment, &segment);
    code_ = {segment.begin, segment.bytes};
    if (!segment.alone || segment.bytes > kHugePage) return;
    const std::lock_guard<std::mutex> hold(code_mutex);
    if (code_users == nullptr) code_users = new std::map<void*, int>;
    void* const base = reinterpret_cast<void*>(segment.base);
    if (++(*code_users)[base] == 1) replace_by_huge_page(segment);
    base_ = base;
}

HugeCode::~HugeCode() {
    if (base_ == nullptr) return;
    const std::lock_guard<std::mutex> hold(code_mutex);
    const auto found = code_users->find(base_);
    if (--found->second == 0) code_users->erase(found);
}

}  // namespace sk::model
