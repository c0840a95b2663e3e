// json.h: JSON text -> values, and fields that know where they stand, for error messages.
#pragma once

#include <stdint.h>

#include <string>
#include <utility>
#include <vector>

#include "failure.h"

namespace sk::model {

struct Json {
    enum class Kind { kNull, kBoolean, kInteger, kReal, kString, kArray, kObject };
    Kind kind = Kind::kNull;
    bool truth = false;
    int64_t integer = 0;
    std::string text;
    std::vector<Json> items;                              // of an array
    std::vector<std::pair<std::string, Json>> members;  // of an object, in order
};

// Bounded in depth; text that is no JSON is SK_ERROR_CORRUPT with the name of the file and the line.
Json parse_json(const std::string& text, const char* file);

// A value and its place. A field must not outlive the field that it was taken from.
class Field {
  public:
    Field(const Json& value, const char* file) : value_(value), parent_(nullptr), name_(file) {}

    const Json& value() const { return value_; }
    bool has(const char* name) const;  // with another value than null
    Field at(const char* name) const;
    size_t count() const;  // of an array
    Field item(size_t index) const;
    size_t member_count() const;  // of an object
    Field member(size_t index) const;
    const char* name() const { return name_; }

    int64_t integer(int64_t least, int64_t most) const;
    bool truth() const;
    const std::string& text() const;
    std::vector<int64_t> integers(int64_t least, int64_t most) const;
    [[noreturn]] void refuse(const char* format, ...) const __attribute__((format(printf, 2, 3)));

  private:
    Field(const Json& value, const Field* parent, const char* name, size_t index)
        : value_(value), parent_(parent), name_(name), index_(index) {}
    std::string where() const;
    void expect(Json::Kind kind, const char* what) const;

    const Json& value_;
    const Field* const parent_;
    const char* const name_;  // null: an item of an array
    const size_t index_ = 0;
};

}  // namespace sk::model
