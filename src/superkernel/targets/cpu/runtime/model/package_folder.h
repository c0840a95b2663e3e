// package_folder.h: the folder of a package: its files, found only inside it, and their checksums.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <map>
#include <string>

#include "held_folder.h"

namespace sk::model {

constexpr const char* kManifest = "manifest.json";

// A regular file that is open for reading; closed at the end.
class OpenFile {
  public:
    OpenFile(int descriptor, const char* name);
    ~OpenFile() { close(descriptor_); }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    int descriptor() const { return descriptor_; }
    int64_t bytes() const { return bytes_; }

  private:
    const int descriptor_;
    int64_t bytes_ = 0;
};

// A file in memory, read-only; unmapped at the end.
class MappedFile {
  public:
    MappedFile() = default;
    MappedFile(const OpenFile& file, const char* name);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const char* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    void advise_huge_pages() const;  // where the file system has them; otherwise nothing happens
    // The contents from an offset on, in memory of its own and in huge pages where the system has them; what lies before
    // is gone.
    void replace_by_copy(size_t from);

  private:
    char* data_ = nullptr;
    size_t bytes_ = 0;
    char* mapped_ = nullptr;  // `data_`, or where the copy begins
    size_t mapped_bytes_ = 0;
};

struct Checksum {
    int64_t bytes;
    std::string sha256;
};

class PackageFolder {
  public:
    // Reads checksums.json and compares manifest.json with it, and the sizes of all other files.
    explicit PackageFolder(const HeldFolder& held);

    const char* path() const { return held_.path(); }
    const std::string& manifest() const { return manifest_; }
    // The file of a relative path, which must be listed in checksums.json and lie inside the folder.
    OpenFile open(const std::string& relative) const;
    std::string real_path(const std::string& relative) const { return real_ + "/" + relative; }
    void check_contents(const std::string& relative, const OpenFile& file) const;  // against its hash
    void check_all() const;

  private:
    bool has_file(const char* name) const;
    OpenFile open_inside(const std::string& relative) const;
    void check_inside(const std::string& relative) const;
    bool has_link(const std::string& relative) const;
    std::string read_small(const char* name) const;
    void check_digest(const std::string& relative, const std::string& found) const;

    const HeldFolder& held_;
    std::string real_;  // the path without symbolic links
    std::string manifest_;
    std::map<std::string, Checksum> files_;
};

}  // namespace sk::model
