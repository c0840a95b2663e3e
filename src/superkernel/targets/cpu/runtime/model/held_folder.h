// held_folder.h: the path of a package -> what is read of one folder, also where another one takes its place meanwhile.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "failure.h"

namespace sk::model {

constexpr int kMostFoldersRead = 16;

// The folder that a path leads to. Its files are opened by its descriptor, and not by the path, which may lead to another
// folder a moment later.
class HeldFolder {
  public:
    explicit HeldFolder(const char* path)
        : path_(path), descriptor_(open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)), error_(descriptor_ < 0 ? errno : 0) {}
    // The folder of a descriptor of the caller, which the path led to.
    HeldFolder(const char* path, int descriptor)
        : path_(path), descriptor_(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)), error_(descriptor_ < 0 ? errno : 0) {}
    ~HeldFolder() {
        if (descriptor_ >= 0) close(descriptor_);
    }
    HeldFolder(const HeldFolder&) = delete;
    HeldFolder& operator=(const HeldFolder&) = delete;

    const char* path() const { return path_; }
    int descriptor() const { return descriptor_; }  // negative: the folder cannot be opened
    int error() const { return error_; }            // why

    // Whether the path still leads there. One that cannot be held stays: reading it tells why.
    bool is_in_place() const {
        struct stat held, now;
        if (descriptor_ < 0 || fstat(descriptor_, &held) != 0) return true;
        return stat(path_, &now) == 0 && held.st_dev == now.st_dev && held.st_ino == now.st_ino;
    }

  private:
    const char* const path_;
    const int descriptor_, error_;
};

// The failure with the path of the package in its sentence.
inline Failure naming(const char* path, const Failure& failure) {
    if (failure.sentence.find(path) != std::string::npos) return failure;
    return {failure.status, "the package '" + std::string(path) + "': " + failure.sentence};
}

// What `read` returns of the folder: it is called anew where an export has put another one in its place meanwhile.
template <typename Read>
auto read_one_folder(const char* path, const Read& read) {
    for (int i = 0; i < kMostFoldersRead; ++i) {
        const HeldFolder held(path);
        try {
            auto found = read(held);
            if (held.is_in_place()) return found;
        } catch (const Failure& failure) {
            if (held.is_in_place()) throw naming(path, failure);
        }
    }
    fail(SK_ERROR_IO, "the package '%s' was replaced %d times while it was read; open it again", path, kMostFoldersRead);
}

}  // namespace sk::model
