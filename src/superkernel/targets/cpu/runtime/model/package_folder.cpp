// package_folder.cpp: a path -> the files of a package, each of them inside the folder and as long as it should be.
#include "package_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "huge_pages.h"
#include "json.h"
#include "sha256.h"

namespace sk::model {
namespace {

constexpr int64_t kMostJsonBytes = int64_t(256) << 20;
constexpr int64_t kChecksumsVersion = 1;
constexpr const char* kChecksums = "checksums.json";

// Closes the file at the end.
struct OpenFile {
    int number;
    ~OpenFile() { close(number); }
};

int open_regular(const std::string& path, const char* name, int64_t& bytes) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
    if (file < 0) fail(SK_ERROR_IO, "%s cannot be read: %s", name, strerror(errno));
    struct stat status;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(file);
        fail(SK_ERROR_IO, "%s is not a regular file", name);
    }
    bytes = status.st_size;
    return file;
}

std::string real_path(const std::string& path, const char* name) {
    char* const found = realpath(path.c_str(), nullptr);
    if (found == nullptr) fail(SK_ERROR_IO, "%s cannot be opened: %s", name, strerror(errno));
    std::string text = found;
    free(found);
    return text;
}

bool stays_inside(const std::string& relative) {
    if (relative.empty() || relative[0] == '/' || relative.size() > 4096) return false;
    size_t begin = 0;
    for (;;) {
        const size_t end = relative.find('/', begin);
        const std::string part = relative.substr(begin, end == std::string::npos ? end : end - begin);
        if (part.empty() || part == "." || part == "..") return false;
        if (end == std::string::npos) return true;
        begin = end + 1;
    }
}

bool is_digest(const std::string& text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

MappedFile::MappedFile(const std::string& path, const char* name) {
    int64_t bytes = 0;
    const OpenFile file{open_regular(path, name, bytes)};
    bytes_ = mapped_bytes_ = size_t(bytes);
    if (bytes_ == 0) return;
    void* const mapped = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (mapped == MAP_FAILED) fail(SK_ERROR_IO, "%s cannot be mapped into memory: %s", name, strerror(errno));
    data_ = mapped_ = static_cast<char*>(mapped);
}

MappedFile::~MappedFile() {
    if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    return *this;
}

void MappedFile::advise_huge_pages() const {
    if (data_ == nullptr) return;
    madvise(mapped_, mapped_bytes_, MADV_HUGEPAGE);
    madvise(mapped_, mapped_bytes_, MADV_WILLNEED);
}

void MappedFile::replace_by_copy(size_t from) {
    from = from / kHugePage * kHugePage;  // tensors keep their alignment
    if (from >= bytes_) return;
    const size_t wanted = bytes_ - from, used = whole_huge_pages(wanted);
    char* const copy = map_huge_pages(wanted);
    if (copy == nullptr) throw std::bad_alloc();
    memcpy(copy, data_ + from, wanted);
    mprotect(copy, used, PROT_READ);
    munmap(mapped_, mapped_bytes_);
    mapped_ = copy;
    mapped_bytes_ = used;
    data_ = copy - from;  // offsets count from the begin of the file
}

PackageFolder::PackageFolder(const char* path) : path_(path) {
    struct stat status;
    if (stat(path, &status) != 0) fail(SK_ERROR_IO, "the package '%s' cannot be opened: %s", path, strerror(errno));
    if (!S_ISDIR(status.st_mode)) fail(SK_ERROR_NOT_A_PACKAGE, "'%s' is not a package: a package is a folder", path);
    real_ = real_path(path_, path);
    if (!has_file(kManifest)) {
        fail(SK_ERROR_NOT_A_PACKAGE, "'%s' is not a package: it has no %s", path, kManifest);
    }
    if (!has_file(kChecksums)) {
        fail(SK_ERROR_CORRUPT, "the package '%s' has no %s: its export was not finished; export it again", path, kChecksums);
    }
    const Json parsed = parse_json(read_small(kChecksums), kChecksums);
    const Field root(parsed, kChecksums);
    if (root.at("version").integer(1, INT64_MAX) > kChecksumsVersion) {
        fail(SK_ERROR_VERSION, "the package '%s' was made by a newer SuperKernel; export it again, or update this one", path);
    }
    const Field files = root.at("files");
    for (size_t i = 0; i < files.member_count(); ++i) {
        const Field file = files.member(i);
        const std::string digest = file.at("sha256").text();
        if (!is_digest(digest)) file.at("sha256").refuse("these are not 64 hexadecimal digits");
        files_.emplace(file.name(), Checksum{file.at("bytes").integer(0, INT64_MAX), digest});
    }
    if (files_.count(kManifest) == 0) files.refuse("%s is not listed", kManifest);
    for (const auto& file : files_) check_size(file.first, file.second);
    manifest_ = read_small(kManifest);
    check_digest(kManifest, sha256(manifest_.data(), manifest_.size()));
}

// Refuses a folder that cannot be searched.
bool PackageFolder::has_file(const char* name) const {
    if (access((real_ + "/" + name).c_str(), F_OK) == 0) return true;
    if (errno == ENOENT) return false;
    fail(SK_ERROR_IO, "the package '%s': %s cannot be opened: %s", path_.c_str(), name, strerror(errno));
}

void PackageFolder::check_digest(const std::string& relative, const std::string& found) const {
    const std::string& listed = files_.at(relative).sha256;
    if (found == listed) return;
    fail(SK_ERROR_CORRUPT, "the package '%s': '%s' is not the file that was exported: its SHA-256 is %s, and %s lists %s; export "
         "it again", path_.c_str(), relative.c_str(), found.c_str(), kChecksums, listed.c_str());
}

std::string PackageFolder::resolve_inside(const std::string& relative) const {
    if (!stays_inside(relative)) {
        fail(SK_ERROR_PATH, "the package '%s' names the file '%s', which is not a path inside it; it was not opened",
             path_.c_str(), relative.c_str());
    }
    const std::string inside = real_ + "/" + relative;
    if (access(inside.c_str(), F_OK) != 0) {
        fail(SK_ERROR_IO, "the package '%s': the file '%s' cannot be opened: %s; copy or export the package again",
             path_.c_str(), relative.c_str(), strerror(errno));
    }
    const std::string real = real_path(inside, relative.c_str());
    if (real.compare(0, real_.size() + 1, real_ + "/") != 0) {
        fail(SK_ERROR_PATH, "the package '%s': '%s' is a symbolic link out of the package; it was not opened", path_.c_str(),
             relative.c_str());
    }
    return real;
}

std::string PackageFolder::resolve(const std::string& relative) const {
    std::string found = resolve_inside(relative);
    if (files_.count(relative) == 0) {
        fail(SK_ERROR_CORRUPT, "the package '%s': %s does not list the file '%s'; export it again", path_.c_str(), kChecksums,
             relative.c_str());
    }
    return found;
}

std::string PackageFolder::read_small(const char* name) const {
    int64_t bytes = 0;
    const OpenFile file{open_regular(resolve_inside(name), name, bytes)};
    if (bytes > kMostJsonBytes) fail(SK_ERROR_CORRUPT, "the package '%s': %s is too large", path_.c_str(), name);
    std::string text(size_t(bytes), '\0');
    size_t had = 0;
    while (had < text.size()) {
        const ssize_t got = read(file.number, &text[had], text.size() - had);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) fail(SK_ERROR_IO, "the package '%s': %s cannot be read", path_.c_str(), name);
        had += size_t(got);
    }
    return text;
}

void PackageFolder::check_size(const std::string& relative, const Checksum& expected) const {
    int64_t bytes = 0;
    const OpenFile file{open_regular(resolve_inside(relative), relative.c_str(), bytes)};
    if (bytes == expected.bytes) return;
    fail(SK_ERROR_CORRUPT, "the package '%s': '%s' has %lld bytes instead of %lld: it was truncated or changed; export it again",
         path_.c_str(), relative.c_str(), (long long)bytes, (long long)expected.bytes);
}

void PackageFolder::check_contents(const std::string& relative) const {
    const MappedFile file(resolve(relative), relative.c_str());
    check_digest(relative, sha256(file.data(), file.bytes()));
}

void PackageFolder::check_all() const {
    for (const auto& file : files_) check_contents(file.first);
}

}  // namespace sk::model
