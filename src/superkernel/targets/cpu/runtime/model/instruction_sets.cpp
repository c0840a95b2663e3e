// instruction_sets.cpp: flags of this processor -> which code of a package this processor can run.
#include "instruction_sets.h"

#include <elf.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "failure.h"
#include "object_file.h"
#include "processor_flags.h"

namespace sk::model {
namespace {

struct Level {
    const char* name;
    const char* adds;  // to the level before it
};

constexpr Level kLevels[] = {
    {"x86-64", "sse2"},
    {"x86-64-v2", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"},
    {"x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"},
    {"x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"},
};

#if defined(__x86_64__)
constexpr const char* kArchitecture = "x86-64";
constexpr int kMachine = EM_X86_64;  // as in the header of an ELF file
#elif defined(__aarch64__)
constexpr const char* kArchitecture = "aarch64";
constexpr int kMachine = EM_AARCH64;
#else
constexpr const char* kArchitecture = "unknown";
constexpr int kMachine = EM_NONE;
#endif

// Whether the file is code for this architecture, by its ELF header. What is no ELF file, the loader refuses.
bool is_for_this_architecture(const OpenFile& file) {
    const int found = machine_of(file.descriptor());
    return found == EM_NONE || kMachine == EM_NONE || found == kMachine;
}

// What the processor lacks for code of this instruction set, one after the other; empty: it can run it.
std::string lacking(const ObjectSpec& object, const std::set<std::string>& flags, const PackageFolder& folder) {
    std::string needed;
    if (object.isa.compare(0, 6, "x86-64") == 0) {
        if (kArchitecture != std::string("x86-64")) return "the instructions of x86-64";
        bool known = false;
        for (const Level& level : kLevels) {
            needed += std::string(level.adds) + " ";
            if ((known = object.isa == level.name)) break;
        }
        if (!known) return "an instruction set that this version does not know";
    } else if (object.isa == "aarch64") {
        if (kArchitecture != object.isa) return "the instructions of aarch64";
    } else if (object.isa.compare(0, 7, "native-") != 0) {
        return "an instruction set that this version does not know";
    } else if (!is_for_this_architecture(folder.open(object.file))) {
        return "the instructions of its architecture";
    }
    for (const std::string& flag : object.features) needed += flag + " ";
    std::string missing;
    int count = 0;
    std::istringstream words(needed);
    for (std::string word; words >> word;) {
        if (flags.count(word) == 0 && ++count <= 8) missing += (missing.empty() ? "" : ", ") + word;
    }
    return missing;
}

int demand(const std::string& isa) {
    if (isa.compare(0, 7, "native-") == 0) return 100;
    return isa.size() > 8 && isa.compare(0, 8, "x86-64-v") == 0 ? isa[8] - '0' : 0;
}

bool is_for(const ShapeSpec& shape, const std::string& isa) {
    return shape.isa.empty() || std::find(shape.isa.begin(), shape.isa.end(), isa) != shape.isa.end();
}

// Whether every entry has a shape for the instruction set, and every launch of these shapes has its code.
bool covers(const Manifest& manifest, const std::string& isa, const std::set<std::string>& runnable) {
    for (const EntrySpec& entry : manifest.entries) {
        bool found = false;
        for (const ShapeSpec& shape : entry.shapes) {
            if (!is_for(shape, isa)) continue;
            found = true;
            for (const LaunchSpec& launch : shape.launches) {
                for (const ObjectList& object : manifest.objects) {
                    if (object.launch != launch.object) continue;
                    const auto fits = [&](const ObjectSpec& choice) { return runnable.count(choice.file) != 0; };
                    if (std::none_of(object.choices.begin(), object.choices.end(), fits)) return false;
                }
            }
        }
        if (!found) return false;
    }
    return true;
}

// The code of the instruction set; where a launch has none, the most demanding code that runs here.
void keep_code(ObjectList& object, const std::string& isa, const std::set<std::string>& runnable) {
    const ObjectSpec* best = nullptr;
    for (const ObjectSpec& choice : object.choices) {
        if (runnable.count(choice.file) == 0) continue;
        const bool exact = choice.isa == isa, better = best == nullptr || demand(choice.isa) > demand(best->isa);
        if (exact || (better && (best == nullptr || best->isa != isa))) best = &choice;
    }
    object.choices = best == nullptr ? std::vector<ObjectSpec>() : std::vector<ObjectSpec>{*best};
}

}  // namespace

std::string choose_instruction_set(Manifest& manifest, const PackageFolder& folder) {
    const std::set<std::string> flags = processor_flags();
    std::vector<std::string> sets;  // that the package has, most demanding first
    std::set<std::string> runnable, refused;
    std::string reasons;
    for (const ObjectList& object : manifest.objects) {
        for (const ObjectSpec& choice : object.choices) {
            const std::string missing = lacking(choice, flags, folder);
            if (missing.empty()) {
                runnable.insert(choice.file);
            } else if (refused.insert(choice.isa).second) {
                reasons += (reasons.empty() ? "" : "; ") + choice.isa + " (this processor lacks " + missing + ")";
            }
            if (std::find(sets.begin(), sets.end(), choice.isa) == sets.end()) sets.push_back(choice.isa);
        }
    }
    std::stable_sort(sets.begin(), sets.end(), [](const auto& a, const auto& b) { return demand(a) > demand(b); });
    if (sets.empty()) return "";  // no launch at all
    for (const std::string& isa : sets) {
        if (refused.count(isa) != 0 || !covers(manifest, isa, runnable)) continue;
        for (ObjectList& object : manifest.objects) keep_code(object, isa, runnable);
        for (EntrySpec& entry : manifest.entries) {
            std::vector<ShapeSpec> kept;
            for (ShapeSpec& shape : entry.shapes) {
                if (is_for(shape, isa)) kept.push_back(std::move(shape));
            }
            entry.shapes = std::move(kept);
        }
        return isa;
    }
    fail(SK_ERROR_UNSUPPORTED, "this processor cannot run the package '%s', whose code is for %s; export it for an older "
         "processor, as in sk.export(..., march=\"x86-64-v3\"), or on this machine", folder.path(),
         reasons.empty() ? "other instruction sets" : reasons.c_str());
}

}  // namespace sk::model
