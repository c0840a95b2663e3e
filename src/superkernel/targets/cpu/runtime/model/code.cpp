// code.cpp: objects of a package -> loaded code, with the symbols of this library visible to it.
#include "code.h"

#include <dlfcn.h>

#include <atomic>

#include "failure.h"
#include "package_folder.h"

namespace sk::model {
namespace {

// A path to the same file that was never used before: the loader takes a file that has replaced a loaded file for the old
// one if their paths are equal. Each bit of a counter is one of two spellings of "/".
std::string fresh_spelling(const std::string& path) {
    static std::atomic<uint32_t> opened{0};
    std::string slashes = "/";
    for (uint32_t bits = opened.fetch_add(1); bits != 0; bits >>= 1) slashes += (bits & 1) != 0 ? "./" : "/";
    return slashes + path.substr(1);
}

// Objects use functions of this library without naming it. A program that loaded the library privately, as Python does,
// would hide them; in a program with the static library they are the program's.
void show_symbols() {
    Dl_info here;
    if (dladdr(reinterpret_cast<const void*>(&sk_version), &here) == 0 || here.dli_fname == nullptr) return;
    void* const self = dlopen(here.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    if (self != nullptr) dlclose(self);  // the symbols stay visible, and the library can still be unloaded
}

}  // namespace

SharedObject::SharedObject(const std::string& path, const std::string& relative)
    : relative_(relative), handle_(dlopen(fresh_spelling(path).c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    const char* const reason = dlerror();
    fail(SK_ERROR_LOAD, "the code '%s' of the package cannot be loaded: %s", relative.c_str(),
         reason == nullptr ? "no reason given" : reason);
}

SharedObject::~SharedObject() { dlclose(handle_); }

host::Entry SharedObject::entry(const std::string& symbol) const {
    void* const found = symbol.empty() ? nullptr : dlsym(handle_, symbol.c_str());
    if (found == nullptr) {
        fail(SK_ERROR_LOAD, "the code '%s' of the package has no function '%s'; export the package again", relative_.c_str(),
             symbol.c_str());
    }
    return reinterpret_cast<host::Entry>(found);
}

void Code::load(const PackageFolder& folder, const Manifest& manifest) {
    show_symbols();
    for (const ObjectList& object : manifest.objects) {
        if (object.choices.empty()) continue;  // no shape that is kept needs it
        const std::string& file = object.choices[0].file;
        const std::string path = folder.resolve(file);
        folder.check_contents(file);
        objects_.emplace(object.launch, std::make_unique<SharedObject>(path, file));
    }
    for (const EntrySpec& entry : manifest.entries) {
        for (const ShapeSpec& shape : entry.shapes) {
            for (const LaunchSpec& launch : shape.launches) {
                const SharedObject& object = *objects_.at(launch.object);
                for (const PlanSpec& plan : launch.plans) {
                    auto code = std::make_unique<PlanCode>();
                    code->spec = &plan;
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

PlanCode& Code::find(const PlanSpec& plan) const { return *plans_.at(&plan); }

}  // namespace sk::model
