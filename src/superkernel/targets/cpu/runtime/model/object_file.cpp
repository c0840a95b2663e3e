// object_file.cpp: the file of an object -> what it is for, and whether all of it is there, by its ELF header.
#include "object_file.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sk::model {
namespace {

// The header and what it lists of the file; closed at the end.
struct ObjectFile {
    int number;
    Elf64_Ehdr header{};

    explicit ObjectFile(const std::string& path) : number(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
    ~ObjectFile() {
        if (number >= 0) close(number);
    }

    bool read_header() {
        return number >= 0 && pread(number, &header, sizeof header, 0) == ssize_t(sizeof header) &&
               memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64;
    }
};

}  // namespace

int machine_of(const std::string& path) {
    ObjectFile file(path);
    return file.read_header() ? file.header.e_machine : EM_NONE;
}

bool is_complete(const std::string& path) {
    ObjectFile file(path);
    struct stat status;
    if (!file.read_header() || fstat(file.number, &status) != 0) return false;
    const auto bytes = uint64_t(status.st_size);
    for (uint64_t i = 0; i < file.header.e_phnum; ++i) {
        Elf64_Phdr segment;
        const uint64_t at = file.header.e_phoff + i * sizeof segment;
        if (at > bytes || pread(file.number, &segment, sizeof segment, off_t(at)) != ssize_t(sizeof segment)) return false;
        if (segment.p_offset > bytes || segment.p_filesz > bytes - segment.p_offset) return false;
    }
    return true;
}

}  // namespace sk::model
