// manifest.h: the manifest of a package as data, every number checked against the sizes of what it points into.
#pragma once

#include <stdint.h>

#include <string>
#include <vector>

#include "json.h"
#include "superkernel/model.h"
#include "weights.h"

namespace sk::model {

struct TensorSpec {
    std::string name;
    sk_dtype dtype;
    std::vector<int64_t> shape;
    int64_t bytes;
    int32_t bucket_axis = -1;
};

struct StateSpec {
    TensorSpec tensor;
    int64_t initial;  // offset of its initial value in the weights file
    int64_t offset;   // in the states of a context
};

enum class Memory : uint8_t { kInput, kOutput, kWeight, kState, kArena, kLaunchArena };

struct Place {
    Memory memory;
    int32_t index = 0;   // of an input or output
    int64_t offset = 0;  // in that input or output, in the weights file, in the states, in the arena
    int64_t bytes = 0;
};

// One entry symbol of a launch and what it needs, for a number of cores.
struct PlanSpec {
    int32_t cores;
    std::string entry;
    std::vector<int32_t> slot_source;    // index of an argument; -1: a literal
    std::vector<uint64_t> slot_literal;  // the literal, or what is added to the argument's address
    int32_t rendezvous, counters, blocking_steps;
    int64_t copies_bytes, arena_bytes;
    bool needs_team;
    std::vector<int64_t> source_offset, source_bytes;  // of arguments in the arena of the launch
    std::vector<std::string> steps;
};

struct LaunchSpec {
    std::string object;
    std::vector<Place> arguments;
    std::vector<PlanSpec> plans;  // most cores first
};

// A strided copy after the launches; strides in bytes.
struct CopySpec {
    Place to, from;
    int64_t itemsize;
    std::vector<int64_t> shape, to_strides, from_strides;
};

struct ShapeSpec {
    std::vector<TensorSpec> inputs, outputs;
    std::string bucket_name;
    int64_t bucket_size = 0;  // 0: no bucket
    int64_t arena = 0;
    std::vector<std::string> isa;  // instruction sets that this program is for; empty: all
    std::vector<LaunchSpec> launches;
    std::vector<CopySpec> copies;
};

struct EntrySpec {
    std::string name, doc;
    std::vector<ShapeSpec> shapes;
};

// Code of one launch for one instruction set.
struct ObjectSpec {
    std::string isa, file;
    std::vector<std::string> features;  // flags of /proc/cpuinfo
};

struct ObjectList {
    std::string launch;
    std::vector<ObjectSpec> choices;
};

struct Manifest {
    std::string name, exported_by;
    std::vector<StateSpec> states;
    int64_t state_bytes = 0;
    std::vector<ObjectList> objects;
    std::vector<EntrySpec> entries;
};

constexpr int kMostRank = 16;
constexpr int64_t kAlignment = 64;  // of arenas, states and staged arguments

inline int64_t align_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Refuses another format, a newer version and a package that needs torch, before the weights are looked at.
void check_manifest_kind(const Field& manifest, const std::string& path);
Manifest read_manifest(const Field& manifest, const Weights& weights);

}  // namespace sk::model
