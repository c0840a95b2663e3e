// code.cpp: objects of a package -> loaded code.
#include "code.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <atomic>

#include "failure.h"
#include "loader_turn.h"
#include "object_file.h"
#include "package_folder.h"

namespace sk::model {
namespace {

// Each bit is one of two spellings of "/". The loader takes a file for one that it has loaded if their paths are equal.
std::string slashes(uint64_t bits, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += (bits >> i & 1) != 0 ? "./" : "/";
    return text;
}

// A path to the same file that this library has not used before: the file may have replaced one that is loaded.
std::string fresh_spelling(const std::string& path) {
    static std::atomic<uint32_t> opened{0};
    const uint32_t number = opened.fetch_add(1);
    return "/" + slashes(number, number == 0 ? 0 : 32 - __builtin_clz(number)) + path.substr(1);
}

bool leads_to(const std::string& path, const struct stat& file) {
    struct stat found;
    return stat(path.c_str(), &found) == 0 && found.st_dev == file.st_dev && found.st_ino == file.st_ino;
}

void* load(const std::string& path, std::string& reason) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* const error = handle == nullptr ? dlerror() : nullptr;
    if (error != nullptr && reason.empty()) reason = error;
    return handle;
}

// The object in an open file. By its path debuggers find it; but that may lead to another package by now. So it is loaded by
// its descriptor as well, which gives the same object again if it is that of the path. What is loaded keeps its number in the
// file system: a spelling with that number is one of this file only, also in another copy of this library.
void* load(const std::string& path, int descriptor, std::string& reason) {
    const std::string link = "/proc/thread-self/fd/" + std::to_string(descriptor);
    struct stat file;
    if (fstat(descriptor, &file) != 0 || !leads_to(link, file)) return load(fresh_spelling(path), reason);
    void* const by_path = leads_to(path, file) ? load(fresh_spelling(path), reason) : nullptr;
    void* const by_descriptor = load("/" + slashes(file.st_dev, 64) + slashes(file.st_ino, 64) + link.substr(1), reason);
    if (by_path != nullptr) dlclose(by_path);
    return by_descriptor;
}

}  // namespace

SharedObject::SharedObject(const PackageFolder& folder, const std::string& relative) : relative_(relative) {
    const OpenFile file = folder.open(relative);
    folder.check_contents(relative, file);
    if (machine_of(file.descriptor()) != EM_NONE && !is_complete(file.descriptor())) {
        fail(SK_ERROR_LOAD, "the code '%s' of the package is cut short; export the package again", relative.c_str());
    }
    const LoaderTurn turn;
    std::string reason;
    handle_ = load(folder.real_path(relative), file.descriptor(), reason);
    if (handle_ != nullptr) {
        huge_code_.emplace(handle_);
        return;
    }
    struct statvfs system;
    const bool noexec = fstatvfs(file.descriptor(), &system) == 0 && (system.f_flag & ST_NOEXEC) != 0;
    fail(SK_ERROR_LOAD, "the code '%s' of the package cannot be loaded: %s%s", relative.c_str(),
         reason.empty() ? "no reason given" : reason.c_str(),
         noexec ? "; its file system is mounted noexec: copy the package to another one" : "");
}

SharedObject::~SharedObject() {
    const LoaderTurn turn;
    huge_code_.reset();
    dlclose(handle_);
}

host::Entry SharedObject::entry(const std::string& symbol) const {
    void* const found = symbol.empty() ? nullptr : dlsym(handle_, symbol.c_str());
    if (found == nullptr) {
        fail(SK_ERROR_LOAD, "the code '%s' of the package has no function '%s'; export the package again", relative_.c_str(),
             symbol.c_str());
    }
    return reinterpret_cast<host::Entry>(found);
}

StopSlot SharedObject::stop_slot() const { return reinterpret_cast<StopSlot>(dlsym(handle_, "sk_stop_slot")); }

EnterFunction SharedObject::enter() const { return reinterpret_cast<EnterFunction>(dlsym(handle_, "sk_enter")); }

// As targets/cpu/embedded_facts.py writes it, up to the sources.
static std::string spell_facts(const PlanSpec& plan) {
    std::string text = "1";
    for (const int64_t count : {int64_t(plan.cores), int64_t(plan.rendezvous), int64_t(plan.counters), plan.copies_bytes,
                                int64_t(plan.needs_team)}) {
        text += " " + std::to_string(count);
    }
    text += " [";
    for (size_t slot = 0; slot < plan.slot_source.size(); ++slot) {
        text += (slot > 0 ? "," : "") + std::to_string(plan.slot_source[slot]) + ":" + std::to_string(plan.slot_literal[slot]);
    }
    return text + "] [";
}

void SharedObject::check_facts(const PlanSpec& plan, const LaunchSpec& launch) const {
    const auto* at = static_cast<const char*>(dlsym(handle_, (plan.entry + "_facts").c_str()));
    if (at == nullptr) return;
    const std::string expected = spell_facts(plan);
    const auto refuse = [&](const char* what) {
        fail(SK_ERROR_CORRUPT, "manifest.json is not that of the code '%s': %s of '%s' differ; export the package again",
             relative_.c_str(), what, plan.entry.c_str());
    };
    if (strncmp(at, expected.c_str(), expected.size()) != 0) refuse("the numbers");
    at += expected.size();
    size_t source = 0;
    for (; *at >= '0' && *at <= '9'; ++source) {
        char* end = nullptr;
        const int64_t bytes = strtoll(at, &end, 10);
        const bool written = *end == 'w';
        at = end + (written ? 1 : 0);
        if (*at == ',') ++at;
        if (source >= launch.arguments.size()) refuse("the arguments");
        const Place& place = launch.arguments[source];
        const bool inside = place.memory == Memory::kLaunchArena;
        if ((inside ? plan.source_bytes[source] : place.bytes) < bytes) refuse("the sizes of arguments");
        if (written && (place.memory == Memory::kWeight || place.memory == Memory::kInput)) refuse("the outputs");
    }
    if (*at != ']' || source != launch.arguments.size()) refuse("the arguments");
}

void Code::load(const PackageFolder& folder, const Manifest& manifest) {
    for (const ObjectList& object : manifest.objects) {
        if (object.choices.empty()) continue;  // no shape that is kept needs it
        const std::string& file = object.choices[0].file;
        objects_.emplace(object.launch, std::make_unique<SharedObject>(folder, file));
    }
    for (const EntrySpec& entry : manifest.entries) {
        for (const ShapeSpec& shape : entry.shapes) {
            for (const LaunchSpec& launch : shape.launches) {
                const SharedObject& object = *objects_.at(launch.object);
                for (const PlanSpec& plan : launch.plans) {
                    auto code = std::make_unique<PlanCode>();
                    code->spec = &plan;
                    code->stop_slot = object.stop_slot();
                    code->enter = object.enter();
                    object.check_facts(plan, launch);
                    code->program.facts = {};
                    code->program.facts.entry = object.entry(plan.entry);
                    code->program.facts.cores = plan.cores;
                    code->program.facts.needs_team = plan.needs_team ? 1 : 0;
                    code->program.facts.blocking_steps = plan.blocking_steps;
                    plans_.emplace(&plan, std::move(code));
                }
            }
        }
    }
}

std::vector<MemoryRange> Code::ranges() const {
    std::vector<MemoryRange> found;
    for (const auto& [launch, object] : objects_) found.push_back(object->code());
    return found;
}

PlanCode& Code::find(const PlanSpec& plan) const { return *plans_.at(&plan); }

}  // namespace sk::model
