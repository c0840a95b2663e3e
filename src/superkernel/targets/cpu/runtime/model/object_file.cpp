// object_file.cpp: the file of an object -> what it is for, and whether all of it is there, by its ELF header.
#include "object_file.h"

#include <elf.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sk::model {
namespace {

bool read_header(int file, Elf64_Ehdr& header) {
    return pread(file, &header, sizeof header, 0) == ssize_t(sizeof header) &&
           memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64;
}

}  // namespace

int machine_of(int file) {
    Elf64_Ehdr header;
    return read_header(file, header) ? header.e_machine : EM_NONE;
}

bool is_complete(int file) {
    Elf64_Ehdr header;
    struct stat status;
    if (!read_header(file, header) || fstat(file, &status) != 0) return false;
    const auto bytes = uint64_t(status.st_size);
    for (uint64_t i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        const uint64_t at = header.e_phoff + i * sizeof segment;
        if (at > bytes || pread(file, &segment, sizeof segment, off_t(at)) != ssize_t(sizeof segment)) return false;
        if (segment.p_offset > bytes || segment.p_filesz > bytes - segment.p_offset) return false;
    }
    return true;
}

}  // namespace sk::model
