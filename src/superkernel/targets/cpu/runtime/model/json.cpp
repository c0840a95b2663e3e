// json.cpp: the bytes of a file -> JSON values; anything that the format does not allow is refused.
#include "json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

namespace sk::model {
namespace {

constexpr int kMostDepth = 64;

class Parser {
  public:
    Parser(const std::string& text, const char* file) : at_(text.data()), end_(at_ + text.size()), begin_(at_), file_(file) {}

    Json parse() {
        Json value;
        read_value(value, 0);
        skip_space();
        if (at_ != end_) refuse("text after the end of the value");
        return value;
    }

  private:
    [[noreturn]] void refuse(const char* what) const {
        const auto line = 1 + std::count(begin_, at_, '\n');
        fail(SK_ERROR_CORRUPT, "%s, line %lld: %s; the package is damaged: export it again", file_, (long long)line, what);
    }

    void skip_space() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
    }

    char next() const {
        if (at_ == end_) refuse("the text ends too early");
        return *at_;
    }

    void take(char expected) {
        if (next() != expected) refuse("this is not JSON");
        ++at_;
    }

    void take_word(const char* word) {
        const size_t length = strlen(word);
        if (size_t(end_ - at_) < length || memcmp(at_, word, length) != 0) refuse("this is not JSON");
        at_ += length;
    }

    void read_value(Json& value, int depth) {
        if (depth > kMostDepth) refuse("values are nested too deeply");
        skip_space();
        switch (next()) {
            case '{': return read_object(value, depth);
            case '[': return read_array(value, depth);
            case '"':
                value.kind = Json::Kind::kString;
                value.text = read_string();
                return;
            case 't':
                take_word("true");
                value.kind = Json::Kind::kBoolean;
                value.truth = true;
                return;
            case 'f':
                take_word("false");
                value.kind = Json::Kind::kBoolean;
                return;
            case 'n': return take_word("null");
            default: return read_number(value);
        }
    }

    void read_object(Json& value, int depth) {
        value.kind = Json::Kind::kObject;
        take('{');
        skip_space();
        if (next() == '}') {
            ++at_;
            return;
        }
        for (;;) {
            skip_space();
            if (next() != '"') refuse("a name is missing");
            std::string name = read_string();
            skip_space();
            take(':');
            value.members.emplace_back(std::move(name), Json());
            read_value(value.members.back().second, depth + 1);
            skip_space();
            if (next() == ',') {
                ++at_;
                continue;
            }
            take('}');
            break;
        }
        refuse_duplicates(value);
    }

    void refuse_duplicates(const Json& value) const {
        std::vector<const std::string*> names;
        for (const auto& member : value.members) names.push_back(&member.first);
        const auto less = [](const std::string* a, const std::string* b) { return *a < *b; };
        const auto equal = [](const std::string* a, const std::string* b) { return *a == *b; };
        std::sort(names.begin(), names.end(), less);
        if (std::adjacent_find(names.begin(), names.end(), equal) != names.end()) refuse("a name stands twice in one object");
    }

    void read_array(Json& value, int depth) {
        value.kind = Json::Kind::kArray;
        take('[');
        skip_space();
        if (next() == ']') {
            ++at_;
            return;
        }
        for (;;) {
            value.items.emplace_back();
            read_value(value.items.back(), depth + 1);
            skip_space();
            if (next() == ',') {
                ++at_;
                continue;
            }
            take(']');
            return;
        }
    }

    unsigned read_hex4() {
        unsigned code = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            const char digit = next();
            if (digit >= '0' && digit <= '9') code = code * 16 + unsigned(digit - '0');
            else if (digit >= 'a' && digit <= 'f') code = code * 16 + unsigned(digit - 'a' + 10);
            else if (digit >= 'A' && digit <= 'F') code = code * 16 + unsigned(digit - 'A' + 10);
            else refuse("\\u without four hexadecimal digits");
        }
        return code;
    }

    static void append_utf8(std::string& text, unsigned code) {
        if (code < 0x80) {
            text += char(code);
        } else if (code < 0x800) {
            text += char(0xC0 | code >> 6);
            text += char(0x80 | (code & 63));
        } else if (code < 0x10000) {
            text += char(0xE0 | code >> 12);
            text += char(0x80 | (code >> 6 & 63));
            text += char(0x80 | (code & 63));
        } else {
            text += char(0xF0 | code >> 18);
            text += char(0x80 | (code >> 12 & 63));
            text += char(0x80 | (code >> 6 & 63));
            text += char(0x80 | (code & 63));
        }
    }

    void read_escape(std::string& text) {
        const char kind = next();
        ++at_;
        switch (kind) {
            case '"': case '\\': case '/': text += kind; return;
            case 'b': text += '\b'; return;
            case 'f': text += '\f'; return;
            case 'n': text += '\n'; return;
            case 'r': text += '\r'; return;
            case 't': text += '\t'; return;
            case 'u': break;
            default: refuse("an unknown escape in a string");
        }
        unsigned code = read_hex4();
        if (code >= 0xD800 && code < 0xDC00) {
            take('\\');
            take('u');
            const unsigned low = read_hex4();
            if (low < 0xDC00 || low > 0xDFFF) refuse("half of a surrogate pair");
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xDC00 && code < 0xE000) {
            refuse("half of a surrogate pair");
        }
        if (code == 0) refuse("a string with a zero character");
        append_utf8(text, code);
    }

    std::string read_string() {
        std::string text;
        take('"');
        for (;;) {
            const char* const run = at_;
            while (at_ != end_ && *at_ != '"' && *at_ != '\\' && (unsigned char)(*at_) >= 0x20) ++at_;
            text.append(run, at_);
            if (next() == '"') {
                ++at_;
                return text;
            }
            if (*at_ != '\\') refuse("a control character in a string");
            ++at_;
            read_escape(text);
        }
    }

    void read_number(Json& value) {
        const char* const first = at_;
        if (next() == '-') ++at_;
        const char* const digits = at_;
        while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
        if (at_ == digits || (*digits == '0' && at_ - digits > 1)) refuse("this is not JSON");
        bool whole = true;
        while (at_ != end_ && (strchr(".eE+-", *at_) != nullptr || (*at_ >= '0' && *at_ <= '9'))) {
            if (*at_ == '\0') refuse("this is not JSON");
            whole = false;
            ++at_;
        }
        // what does not fit is no whole number here: every use of it is then refused
        value.kind = Json::Kind::kReal;
        if (!whole || at_ - first > 20) return;
        const std::string spelled(first, at_);
        errno = 0;
        value.integer = strtoll(spelled.c_str(), nullptr, 10);
        if (errno == 0) value.kind = Json::Kind::kInteger;
    }

    const char* at_;
    const char* const end_;
    const char* const begin_;
    const char* const file_;
};

}  // namespace

Json parse_json(const std::string& text, const char* file) { return Parser(text, file).parse(); }

bool Field::has(const char* name) const {
    expect(Json::Kind::kObject, "an object");
    for (const auto& member : value_.members) {
        if (member.first == name) return member.second.kind != Json::Kind::kNull;
    }
    return false;
}

Field Field::at(const char* name) const {
    expect(Json::Kind::kObject, "an object");
    for (const auto& member : value_.members) {
        if (member.first == name) return Field(member.second, this, name, 0);
    }
    refuse("%s is missing", name);
}

size_t Field::count() const {
    expect(Json::Kind::kArray, "a list");
    return value_.items.size();
}

Field Field::item(size_t index) const { return Field(value_.items[index], this, nullptr, index); }

size_t Field::member_count() const {
    expect(Json::Kind::kObject, "an object");
    return value_.members.size();
}

Field Field::member(size_t index) const {
    return Field(value_.members[index].second, this, value_.members[index].first.c_str(), 0);
}

int64_t Field::integer(int64_t least, int64_t most) const {
    expect(Json::Kind::kInteger, "a whole number");
    if (value_.integer < least || value_.integer > most) {
        refuse("%lld is not between %lld and %lld", (long long)value_.integer, (long long)least, (long long)most);
    }
    return value_.integer;
}

bool Field::truth() const {
    expect(Json::Kind::kBoolean, "true or false");
    return value_.truth;
}

const std::string& Field::text() const {
    expect(Json::Kind::kString, "a string");
    return value_.text;
}

std::vector<int64_t> Field::integers(int64_t least, int64_t most) const {
    std::vector<int64_t> numbers(count());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = item(i).integer(least, most);
    return numbers;
}

void Field::expect(Json::Kind kind, const char* what) const {
    if (value_.kind != kind) refuse("this is not %s", what);
}

std::string Field::where() const {
    if (parent_ == nullptr) return std::string(name_) + ":";
    const bool first = parent_->parent_ == nullptr;
    const std::string inside = name_ == nullptr ? "[" + std::to_string(index_) + "]" : (first ? " " : ".") + std::string(name_);
    return parent_->where() + inside;
}

void Field::refuse(const char* format, ...) const {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail(SK_ERROR_CORRUPT, "%s: %s; the package is damaged: export it again", where().substr(0, 512).c_str(), text);
}

}  // namespace sk::model
