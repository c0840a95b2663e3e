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

std::string real_path_of(const std::string& path, const char* name) {
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

OpenFile::OpenFile(int descriptor, const char* name) : descriptor_(descriptor) {
    struct stat status;
    if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(descriptor_);
        fail(SK_ERROR_IO, "%s is not a regular file", name);
    }
    bytes_ = status.st_size;
}

MappedFile::MappedFile(const OpenFile& file, const char* name) {
    bytes_ = mapped_bytes_ = size_t(file.bytes());
    if (bytes_ == 0) return;
    void* const mapped = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
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

PackageFolder::PackageFolder(const HeldFolder& held) : held_(held) {
    if (held.error() == ENOTDIR) fail(SK_ERROR_NOT_A_PACKAGE, "'%s' is not a package: a package is a folder", path());
    if (held.error() != 0) fail(SK_ERROR_IO, "the package '%s' cannot be opened: %s", path(), strerror(held.error()));
    real_ = real_path_of(path(), path());
    if (!has_file(kManifest)) {
        fail(SK_ERROR_NOT_A_PACKAGE, "'%s' is not a package: it has no %s", path(), kManifest);
    }
    if (!has_file(kChecksums)) {
        fail(SK_ERROR_CORRUPT, "the package '%s' has no %s: its export was not finished; export it again", path(), kChecksums);
    }
    const Json parsed = parse_json(read_small(kChecksums), kChecksums);
    const Field root(parsed, kChecksums);
    if (root.at("version").integer(1, INT64_MAX) > kChecksumsVersion) {
        fail(SK_ERROR_VERSION, "the package '%s' was made by a newer SuperKernel; export it again, or update this one", path());
    }
    const Field files = root.at("files");
    for (size_t i = 0; i < files.member_count(); ++i) {
        const Field file = files.member(i);
        const std::string digest = file.at("sha256").text();
        if (!is_digest(digest)) file.at("sha256").refuse("these are not 64 hexadecimal digits");
        files_.emplace(file.name(), Checksum{file.at("bytes").integer(0, INT64_MAX), digest});
    }
    if (files_.count(kManifest) == 0) files.refuse("%s is not listed", kManifest);
    for (const auto& [relative, listed] : files_) {
        const int64_t bytes = open_inside(relative).bytes();
        if (bytes == listed.bytes) continue;
        fail(SK_ERROR_CORRUPT, "the package '%s': '%s' has %lld bytes instead of %lld: it was truncated or changed; export it "
             "again", path(), relative.c_str(), (long long)bytes, (long long)listed.bytes);
    }
    manifest_ = read_small(kManifest);
    check_digest(kManifest, sha256(manifest_.data(), manifest_.size()));
}

// Refuses a folder that cannot be searched.
bool PackageFolder::has_file(const char* name) const {
    if (faccessat(held_.descriptor(), name, F_OK, 0) == 0) return true;
    if (errno == ENOENT) return false;
    fail(SK_ERROR_IO, "the package '%s': %s cannot be opened: %s", path(), name, strerror(errno));
}

void PackageFolder::check_digest(const std::string& relative, const std::string& found) const {
    const std::string& listed = files_.at(relative).sha256;
    if (found == listed) return;
    fail(SK_ERROR_CORRUPT, "the package '%s': '%s' is not the file that was exported: its SHA-256 is %s, and %s lists %s; export "
         "it again", path(), relative.c_str(), found.c_str(), kChecksums, listed.c_str());
}

OpenFile PackageFolder::open_inside(const std::string& relative) const {
    check_inside(relative);
    // a pipe must not block
    const int file = openat(held_.descriptor(), relative.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        const char* const advice = errno == ENOENT ? "; copy or export the package again" : "";
        fail(SK_ERROR_IO, "the package '%s': the file '%s' cannot be opened: %s%s", path(), relative.c_str(), strerror(errno),
             advice);
    }
    return OpenFile(file, relative.c_str());
}

void PackageFolder::check_inside(const std::string& relative) const {
    if (!stays_inside(relative)) {
        fail(SK_ERROR_PATH, "the package '%s' names the file '%s', which is not a path inside it; it was not opened", path(),
             relative.c_str());
    }
    if (!has_link(relative)) return;
    const std::string real = real_path_of(real_path(relative), relative.c_str());
    if (real.compare(0, real_.size() + 1, real_ + "/") != 0) {
        fail(SK_ERROR_PATH, "the package '%s': '%s' is a symbolic link out of the package; it was not opened", path(),
             relative.c_str());
    }
}

// Whether the file or a folder on the way to it is a symbolic link.
bool PackageFolder::has_link(const std::string& relative) const {
    struct stat status;
    for (size_t end = 0; end != std::string::npos;) {
        end = relative.find('/', end + 1);
        const std::string part = relative.substr(0, end);
        if (fstatat(held_.descriptor(), part.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return false;
        if (S_ISLNK(status.st_mode)) return true;
    }
    return false;
}

OpenFile PackageFolder::open(const std::string& relative) const {
    check_inside(relative);
    if (files_.count(relative) == 0) {
        fail(SK_ERROR_CORRUPT, "the package '%s': %s does not list the file '%s'; export it again", path(), kChecksums,
             relative.c_str());
    }
    return open_inside(relative);
}

std::string PackageFolder::read_small(const char* name) const {
    const OpenFile file = open_inside(name);
    if (file.bytes() > kMostJsonBytes) fail(SK_ERROR_CORRUPT, "the package '%s': %s is too large", path(), name);
    std::string text(size_t(file.bytes()), '\0');
    size_t had = 0;
    while (had < text.size()) {
        const ssize_t got = read(file.descriptor(), &text[had], text.size() - had);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) fail(SK_ERROR_IO, "the package '%s': %s cannot be read", path(), name);
        had += size_t(got);
    }
    return text;
}

void PackageFolder::check_contents(const std::string& relative, const OpenFile& file) const {
    const MappedFile contents(file, relative.c_str());
    check_digest(relative, sha256(contents.data(), contents.bytes()));
}

void PackageFolder::check_all() const {
    for (const auto& file : files_) check_contents(file.first, open(file.first));
}

}  // namespace sk::model
