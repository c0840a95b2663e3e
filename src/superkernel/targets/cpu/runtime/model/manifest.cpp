// manifest.cpp: manifest.json -> Manifest; a field that is missing, of another type or out of range is refused by name.
#include "manifest.h"

#include <errno.h>
#include <stdlib.h>

#include <set>

#include "dtypes.h"

namespace sk::model {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kMostBytes = int64_t(1) << 46;
constexpr int64_t kMostCores = 4096;
constexpr int64_t kMostCounters = 1 << 16;

int64_t tensor_bytes(const Field& field, sk_dtype dtype, const std::vector<int64_t>& shape) {
    int64_t bytes = int64_t(sk_dtype_bytes(dtype));
    for (const int64_t size : shape) {
        if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > kMostBytes) field.refuse("the tensor is too large");
    }
    return bytes;
}

TensorSpec read_tensor(const Field& field) {
    TensorSpec tensor;
    tensor.name = field.at("name").text();
    const std::string& dtype = field.at("dtype").text();
    const DtypeRow* const row = find_dtype(dtype);
    if (row == nullptr) field.refuse("'%s' is not a dtype of this version", dtype.c_str());
    tensor.dtype = row->dtype;
    tensor.shape = field.at("shape").integers(0, kMostBytes);
    if (int64_t(tensor.shape.size()) > kMostRank) field.refuse("more than %d dimensions", kMostRank);
    tensor.bytes = tensor_bytes(field, tensor.dtype, tensor.shape);
    return tensor;
}

std::vector<TensorSpec> read_tensors(const Field& list) {
    std::vector<TensorSpec> tensors;
    int64_t bytes = 0;
    for (size_t i = 0; i < list.count(); ++i) {
        tensors.push_back(read_tensor(list.item(i)));
        bytes += tensors.back().bytes;
        if (bytes > kMostBytes) list.refuse("the tensors are too large");
    }
    return tensors;
}

std::vector<std::string> read_texts(const Field& list) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < list.count(); ++i) texts.push_back(list.item(i).text());
    return texts;
}

uint64_t read_literal(const Field& field) {
    if (field.value().kind == Json::Kind::kInteger) return uint64_t(field.value().integer);
    const std::string& text = field.text();
    char* end = nullptr;
    errno = 0;
    const uint64_t number = strtoull(text.c_str(), &end, 0);
    const bool digits = !text.empty() && text[0] >= '0' && text[0] <= '9';
    if (!digits || errno != 0 || *end != '\0') field.refuse("'%s' is not a number of 64 bits", text.substr(0, 64).c_str());
    return number;
}

class Reader {
  public:
    Reader(const Weights& weights) : weights_(weights) {}

    Manifest read(const Field& root) {
        manifest_.name = root.at("name").text();
        manifest_.exported_by = root.at("superkernel").text();
        read_states(root.at("states"));
        read_objects(root.at("objects"));
        const Field entries = root.at("entries");
        if (entries.count() == 0) entries.refuse("the package has no entry");
        std::set<std::string> names;
        for (size_t i = 0; i < entries.count(); ++i) {
            const Field entry = entries.item(i);
            manifest_.entries.push_back(read_entry(entry));
            if (!names.insert(manifest_.entries.back().name).second) entry.refuse("two entries have this name");
        }
        return std::move(manifest_);
    }

  private:
    void read_states(const Field& list) {
        for (size_t i = 0; i < list.count(); ++i) {
            const Field field = list.item(i);
            StateSpec state{read_tensor(field), 0, manifest_.state_bytes};
            const Weight* const initial = weights_.find(state.tensor.name);
            if (initial == nullptr) field.refuse("the weights have no initial value of state '%s'", state.tensor.name.c_str());
            if (initial->bytes != state.tensor.bytes || initial->dtype != state.tensor.dtype) {
                field.refuse("the initial value of state '%s' has another dtype or size", state.tensor.name.c_str());
            }
            if (find_state(state.tensor.name) != nullptr) field.refuse("two states have this name");
            state.initial = initial->offset;
            manifest_.state_bytes += align_up(state.tensor.bytes);
            if (manifest_.state_bytes > kMostBytes) field.refuse("the states are too large");
            manifest_.states.push_back(std::move(state));
        }
    }

    const StateSpec* find_state(const std::string& name) const {
        for (const StateSpec& state : manifest_.states) {
            if (state.tensor.name == name) return &state;
        }
        return nullptr;
    }

    void read_objects(const Field& objects) {
        for (size_t i = 0; i < objects.member_count(); ++i) {
            const Field list = objects.member(i);
            ObjectList object{list.name(), {}};
            if (list.count() == 0) list.refuse("there is no code for this launch");
            for (size_t k = 0; k < list.count(); ++k) {
                const Field choice = list.item(k);
                ObjectSpec spec{choice.at("isa").text(), choice.at("file").text(), {}};
                if (choice.has("features")) spec.features = read_texts(choice.at("features"));
                object.choices.push_back(std::move(spec));
            }
            manifest_.objects.push_back(std::move(object));
        }
    }

    EntrySpec read_entry(const Field& field) {
        EntrySpec entry;
        entry.name = field.at("name").text();
        if (field.has("doc")) entry.doc = field.at("doc").text();
        const Field shapes = field.at("shapes");
        if (shapes.count() == 0) shapes.refuse("the entry has no shapes");
        for (size_t i = 0; i < shapes.count(); ++i) entry.shapes.push_back(read_shape(shapes.item(i)));
        for (const ShapeSpec& shape : entry.shapes) {
            const ShapeSpec& first = entry.shapes[0];
            if (shape.inputs.size() != first.inputs.size() || shape.outputs.size() != first.outputs.size()) {
                shapes.refuse("the shapes of an entry have different numbers of inputs or outputs");
            }
        }
        return entry;
    }

    ShapeSpec read_shape(const Field& field) {
        ShapeSpec shape;
        shape.inputs = read_tensors(field.at("inputs"));
        shape.outputs = read_tensors(field.at("outputs"));
        shape.arena = field.at("arena").integer(0, kMostBytes);
        if (field.has("isa")) shape.isa = read_texts(field.at("isa"));
        if (field.has("bucket")) read_bucket(field.at("bucket"), shape);
        const Field launches = field.at("launches"), copies = field.at("copies");
        for (size_t i = 0; i < launches.count(); ++i) shape.launches.push_back(read_launch(launches.item(i), shape));
        for (size_t i = 0; i < copies.count(); ++i) shape.copies.push_back(read_copy(copies.item(i), shape));
        return shape;
    }

    static void read_bucket(const Field& field, ShapeSpec& shape) {
        shape.bucket_name = field.at("name").text();
        shape.bucket_size = field.at("size").integer(1, kMostBytes);
        for (const bool output : {false, true}) {
            const Field pairs = field.at(output ? "outputs" : "inputs");
            std::vector<TensorSpec>& tensors = output ? shape.outputs : shape.inputs;
            for (size_t i = 0; i < pairs.count(); ++i) {
                const Field pair = pairs.item(i);
                if (pair.count() != 2) pair.refuse("this is not [index, axis]");
                TensorSpec& tensor = tensors[read_index(pair.item(0), tensors.size())];
                const size_t axis = read_index(pair.item(1), tensor.shape.size());
                if (tensor.bucket_axis >= 0) pair.refuse("the tensor stands twice in this list");
                if (tensor.shape[axis] != shape.bucket_size) pair.refuse("this dimension does not have the size of the bucket");
                tensor.bucket_axis = int32_t(axis);
            }
        }
    }

    static size_t read_index(const Field& field, size_t count) {
        if (count == 0) field.refuse("there is nothing to point to");
        return size_t(field.integer(0, int64_t(count) - 1));
    }

    Place read_place(const Field& field, const ShapeSpec& shape) const {
        const std::string& memory = field.at("in").text();
        Place place{};
        place.offset = field.at("offset").integer(0, kMostBytes);
        place.bytes = field.at("bytes").integer(0, kMostBytes);
        int64_t room = 0, begin = 0;
        if (memory == "input" || memory == "output") {
            const std::vector<TensorSpec>& tensors = memory == "input" ? shape.inputs : shape.outputs;
            place.memory = memory == "input" ? Memory::kInput : Memory::kOutput;
            place.index = int32_t(read_index(field.at("index"), tensors.size()));
            room = tensors[size_t(place.index)].bytes;
        } else if (memory == "weight") {
            const std::string& name = field.at("name").text();
            const Weight* const weight = weights_.find(name);
            if (weight == nullptr) field.refuse("the weights have no tensor '%s'", name.c_str());
            place.memory = Memory::kWeight;
            begin = weight->offset;
            room = weight->bytes;
        } else if (memory == "state") {
            const std::string& name = field.at("name").text();
            const StateSpec* const state = find_state(name);
            if (state == nullptr) field.refuse("there is no state '%s'", name.c_str());
            place.memory = Memory::kState;
            begin = state->offset;
            room = state->tensor.bytes;
        } else if (memory == "arena") {
            place.memory = Memory::kArena;
            room = shape.arena;
        } else {
            field.refuse("'%s' is not a kind of memory", memory.substr(0, 64).c_str());
        }
        if (place.offset > room || place.bytes > room - place.offset) {
            field.refuse("bytes %lld to %lld do not lie in the %lld bytes there", (long long)place.offset,
                         (long long)(place.offset + place.bytes), (long long)room);
        }
        place.offset += begin;
        return place;
    }

    LaunchSpec read_launch(const Field& field, const ShapeSpec& shape) const {
        LaunchSpec launch;
        launch.object = field.at("object").text();
        bool known = false;
        for (const ObjectList& object : manifest_.objects) known = known || object.launch == launch.object;
        if (!known) field.refuse("there is no object '%s'", launch.object.c_str());
        const Field arguments = field.at("arguments"), plans = field.at("plans");
        for (size_t i = 0; i < arguments.count(); ++i) {
            const Field argument = arguments.item(i);
            const bool inside = argument.value().kind == Json::Kind::kNull;
            launch.arguments.push_back(inside ? Place{Memory::kLaunchArena} : read_place(argument, shape));
        }
        if (plans.count() == 0) plans.refuse("the launch has no plan");
        for (size_t i = 0; i < plans.count(); ++i) {
            const Field plan = plans.item(i);
            launch.plans.push_back(read_plan(plan, launch));
            if (i > 0 && launch.plans[i - 1].cores <= launch.plans[i].cores) plan.refuse("plans have falling numbers of cores");
        }
        return launch;
    }

    static PlanSpec read_plan(const Field& field, const LaunchSpec& launch) {
        const int64_t arguments = int64_t(launch.arguments.size());
        PlanSpec plan;
        plan.cores = int32_t(field.at("cores").integer(1, kMostCores));
        plan.entry = field.at("entry").text();
        for (const int64_t source : field.at("slot_source").integers(-1, arguments - 1)) plan.slot_source.push_back(int32_t(source));
        const Field literals = field.at("slot_literal");
        for (size_t i = 0; i < literals.count(); ++i) plan.slot_literal.push_back(read_literal(literals.item(i)));
        if (plan.slot_literal.size() != plan.slot_source.size()) literals.refuse("there is not one for every slot");
        plan.rendezvous = int32_t(field.at("rendezvous").integer(0, kMostCounters));
        plan.counters = int32_t(field.at("counters").integer(0, kMostCounters));
        plan.blocking_steps = int32_t(field.at("blocking_steps").integer(0, INT32_MAX));
        plan.copies_bytes = field.at("copies_bytes").integer(0, kMostBytes);
        plan.arena_bytes = field.at("arena_bytes").integer(0, kMostBytes);
        plan.needs_team = field.at("needs_team").truth();
        plan.steps = read_texts(field.at("steps"));
        plan.source_offset = field.at("source_offset").integers(-1, plan.arena_bytes);
        plan.source_bytes = field.at("source_bytes").integers(0, kMostBytes);
        if (int64_t(plan.source_offset.size()) != arguments || int64_t(plan.source_bytes.size()) != arguments) {
            field.refuse("source_offset and source_bytes do not have one number for every argument");
        }
        check_slots(field, plan, launch);
        return plan;
    }

    static void check_slots(const Field& field, const PlanSpec& plan, const LaunchSpec& launch) {
        for (size_t i = 0; i < plan.source_offset.size(); ++i) {
            if (launch.arguments[i].memory != Memory::kLaunchArena) continue;
            if (plan.source_offset[i] < 0) field.refuse("argument %zu has no place", i);
            if (plan.source_bytes[i] > plan.arena_bytes - plan.source_offset[i]) {
                field.refuse("argument %zu does not lie in the arena of the launch", i);
            }
        }
        for (size_t slot = 0; slot < plan.slot_source.size(); ++slot) {
            const int32_t source = plan.slot_source[slot];
            if (source < 0) continue;
            const Place& place = launch.arguments[size_t(source)];
            const int64_t room = place.memory == Memory::kLaunchArena ? plan.source_bytes[size_t(source)] : place.bytes;
            if (plan.slot_literal[slot] > uint64_t(room)) field.refuse("slot %zu points behind its argument", slot);
        }
    }

    CopySpec read_copy(const Field& field, const ShapeSpec& shape) const {
        CopySpec copy;
        copy.to = read_place(field.at("to"), shape);
        copy.from = read_place(field.at("from"), shape);
        if (copy.to.memory != Memory::kOutput && copy.to.memory != Memory::kState && copy.to.memory != Memory::kArena) {
            field.refuse("this memory is not written to");
        }
        const std::string& dtype = field.at("dtype").text();
        const DtypeRow* const row = find_dtype(dtype);
        if (row == nullptr) field.refuse("'%s' is not a dtype of this version", dtype.c_str());
        copy.itemsize = row->bytes;
        copy.shape = field.at("shape").integers(0, kMostBytes);
        if (int64_t(copy.shape.size()) > kMostRank) field.refuse("more than %d dimensions", kMostRank);
        if (tensor_bytes(field, row->dtype, copy.shape) > copy.to.bytes) field.refuse("the copy writes more than its place has");
        copy.to_strides = read_strides(field.at("to_strides"), copy, copy.to);
        copy.from_strides = read_strides(field.at("from_strides"), copy, copy.from);
        return copy;
    }

    // In bytes; refused where an element would not lie in the place.
    static std::vector<int64_t> read_strides(const Field& field, const CopySpec& copy, const Place& place) {
        std::vector<int64_t> strides = field.integers(0, kMostBytes);
        if (strides.size() != copy.shape.size()) field.refuse("there is not one for every dimension");
        int64_t end = copy.itemsize;
        bool empty = false;
        for (size_t axis = 0; axis < strides.size(); ++axis) {
            empty = empty || copy.shape[axis] == 0;
            int64_t reach = 0;
            if (__builtin_mul_overflow(strides[axis], copy.itemsize, &strides[axis]) ||
                __builtin_mul_overflow(strides[axis], copy.shape[axis] - (copy.shape[axis] > 0 ? 1 : 0), &reach) ||
                __builtin_add_overflow(end, reach, &end)) {
                field.refuse("the copy reaches too far");
            }
        }
        if (!empty && end > place.bytes) field.refuse("the copy reaches behind its place");
        return strides;
    }

    const Weights& weights_;
    Manifest manifest_;
};

}  // namespace

void check_manifest_kind(const Field& root, const std::string& path) {
    if (!root.has("format") || root.at("format").text() != "superkernel package") {
        fail(SK_ERROR_NOT_A_PACKAGE, "'%s' is not a package of SuperKernel: its manifest says something else", path.c_str());
    }
    const int64_t version = root.at("version").integer(1, INT64_MAX);
    if (version > kVersion) {
        fail(SK_ERROR_VERSION, "the package '%s' has version %lld, made by a newer SuperKernel; export it again or update "
             "(this library reads version %lld)", path.c_str(), (long long)version, (long long)kVersion);
    }
    if (root.has("needs_torch") && !root.at("needs_torch").text().empty()) {
        fail(SK_ERROR_UNSUPPORTED, "the package '%s' cannot be run without torch: %s", path.c_str(),
             root.at("needs_torch").text().c_str());
    }
}

Manifest read_manifest(const Field& manifest, const Weights& weights) { return Reader(weights).read(manifest); }

}  // namespace sk::model
