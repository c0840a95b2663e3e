// open_model.cpp: a path and options -> an opened package.
#include "open_model.h"

#include <limits.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include <algorithm>

#include "failure.h"
#include "instruction_sets.h"
#include "processors.h"

extern "C" void sk_processor_limit(int32_t count);  // of formation.cpp

namespace sk::model {
namespace {

constexpr const char* kWeights = "weights.safetensors";
constexpr int kMostThreads = 4096;

// Refuses processors that a thread cannot be bound to, by binding this one for a moment.
void check_processors(const std::vector<int>& processors) {
    cpu_set_t before, wanted;
    if (sched_getaffinity(0, sizeof before, &before) != 0) return;
    for (const int processor : processors) {
        CPU_ZERO(&wanted);
        CPU_SET(processor, &wanted);
        const bool bound = sched_setaffinity(0, sizeof wanted, &wanted) == 0;
        sched_setaffinity(0, sizeof before, &before);
        if (!bound) fail(SK_ERROR_ARGUMENT, "options.cpus names processor %d, on which this process may not run", processor);
    }
}

int threads_for(const ModelOptions& options) {
    if (options.threads > 0) return options.threads;
    return options.processors.empty() ? usable_processors() : int(options.processors.size()) + 1;
}

sk_tensor_info describe_tensor(const TensorSpec& tensor) {
    return {tensor.name.c_str(), tensor.dtype,         int32_t(tensor.shape.size()),
            tensor.shape.data(), size_t(tensor.bytes), tensor.bucket_axis};
}

// Levenshtein's distance, of names that are short.
size_t distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
        }
    }
    return row[b.size()];
}

}  // namespace

ModelOptions ModelOptions::read(const sk_options* given) {
    ModelOptions options;
    if (given == nullptr) return options;
    sk_options known;
    memset(&known, 0, sizeof known);
    if (given->size < sizeof given->size || given->size > 4096) {
        fail(SK_ERROR_ARGUMENT, "options.size is %u; set it to sizeof(sk_options)", given->size);
    }
    memcpy(&known, given, std::min<size_t>(given->size, sizeof known));
    // a newer program may set fields that this library does not know; those that are zero mean nothing
    for (size_t i = sizeof known; i < given->size; ++i) {
        if (reinterpret_cast<const char*>(given)[i] != 0) {
            fail(SK_ERROR_ARGUMENT, "options has a field that this version of libsuperkernel does not know; update it");
        }
    }
    if (known.threads < 0 || known.threads > kMostThreads) {
        fail(SK_ERROR_ARGUMENT, "options.threads is %d; it must be 0 (automatic) to %d", known.threads, kMostThreads);
    }
    if (known.wait != SK_WAIT_BALANCED && known.wait != SK_WAIT_SPIN && known.wait != SK_WAIT_SLEEP) {
        fail(SK_ERROR_ARGUMENT, "options.wait is %d; it must be SK_WAIT_BALANCED, SK_WAIT_SPIN or SK_WAIT_SLEEP", known.wait);
    }
    if (known.cpu_count < 0 || known.cpu_count > kMostThreads || (known.cpu_count > 0 && known.cpus == nullptr)) {
        fail(SK_ERROR_ARGUMENT, "options.cpus must point to options.cpu_count numbers of processors");
    }
    for (int i = 0; i < known.cpu_count; ++i) {
        if (known.cpus[i] < 0 || known.cpus[i] >= CPU_SETSIZE) {
            fail(SK_ERROR_ARGUMENT, "options.cpus names processor %d; there is none", known.cpus[i]);
        }
        options.processors.push_back(known.cpus[i]);
    }
    options.threads = known.threads;
    options.wait = sk_wait(known.wait);
    options.copy_weights = known.copy_weights != 0;
    return options;
}

const PlanSpec& choose_plan(const LaunchSpec& launch, int threads) {
    for (const PlanSpec& plan : launch.plans) {
        if (plan.cores <= threads) return plan;
    }
    return launch.plans.back();
}

OpenModel::OpenModel(const HeldFolder& held, const ModelOptions& options)
    : path_(held.path()), threads_(threads_for(options)), wait_(options.wait) {
    check_processors(options.processors);
    const PackageFolder folder(held);
    const Json parsed = parse_json(folder.manifest(), kManifest);
    const Field root(parsed, kManifest);
    check_manifest_kind(root, path_);
    weights_ = Weights(folder, kWeights, options.copy_weights);
    manifest_ = read_manifest(root, weights_);
    instruction_set_ = choose_instruction_set(manifest_, folder);
    code_.load(folder, manifest_);
    int cores = 1;
    for (const EntrySpec& entry : manifest_.entries) {
        for (const ShapeSpec& shape : entry.shapes) {
            for (const LaunchSpec& launch : shape.launches) {
                const PlanSpec& plan = choose_plan(launch, threads_);
                if (plan.cores <= threads_ || plan.needs_team) cores = std::max(cores, plan.cores);
            }
        }
    }
    const int quota = processor_quota();
    std::unique_ptr<AwakeProcessor> awake;
    // a quota counts the time of every thread, also of one that only fills gaps
    if (wait_ == SK_WAIT_SPIN && quota == 0) awake = std::make_unique<AwakeProcessor>(memory_of_calls());
    if (cores > 1 || awake) team_.reset(new Team(cores - 1, wait_, options.processors, std::move(awake)));
    if (quota > 0) sk_processor_limit(quota);
    describe_entries();
}

std::vector<MemoryRange> OpenModel::memory_of_calls() const {
    std::vector<MemoryRange> ranges = code_.ranges();
    ranges.push_back(weights_.tensors());
    return ranges;
}

void OpenModel::describe_entries() {
    const auto describe_all = [this](const std::vector<TensorSpec>& tensors) {
        std::vector<sk_tensor_info> infos;
        for (const TensorSpec& tensor : tensors) infos.push_back(describe_tensor(tensor));
        tensor_infos_.push_back(std::move(infos));
        return tensor_infos_.back().data();
    };
    for (const EntrySpec& entry : manifest_.entries) {
        std::vector<sk_shape_info> shapes;
        for (const ShapeSpec& shape : entry.shapes) {
            sk_shape_info info{int32_t(shape.inputs.size()), int32_t(shape.outputs.size()), nullptr, nullptr, nullptr, 0};
            info.inputs = describe_all(shape.inputs);
            info.outputs = describe_all(shape.outputs);
            if (shape.bucket_size > 0) info.bucket_name = shape.bucket_name.c_str();
            info.bucket_size = shape.bucket_size;
            shapes.push_back(info);
        }
        shape_infos_.push_back(std::move(shapes));
        entry_infos_.push_back({entry.name.c_str(), entry.doc.c_str(), int32_t(entry.shapes.size()), shape_infos_.back().data()});
    }
    for (const StateSpec& state : manifest_.states) state_infos_.push_back(describe_tensor(state.tensor));
}

sk_model_info OpenModel::describe() const {
    return {manifest_.name.c_str(),          manifest_.exported_by.c_str(),   instruction_set_.c_str(),
            int32_t(manifest_.entries.size()), int32_t(manifest_.states.size()), team_ ? team_->size() : 1,
            weights_.bytes()};
}

int OpenModel::find_entry(const char* name) const {
    const std::vector<EntrySpec>& entries = manifest_.entries;
    size_t nearest = 0, least = SIZE_MAX;
    for (size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].name == name) return int(i);
    }
    const std::string wanted = std::string(name).substr(0, 200);
    std::string all;
    for (size_t i = 0; i < entries.size(); ++i) {
        const size_t found = distance(wanted, entries[i].name.substr(0, 200));
        if (found < least) least = found, nearest = i;
        all += (i > 0 ? ", " : "") + entries[i].name;
    }
    const bool close = least <= std::max(wanted.size(), entries[nearest].name.size()) / 2;
    fail(SK_ERROR_NO_SUCH_ENTRY, "the package '%s' has no entry '%s'%s%s%s; its entries are %s", path().c_str(), wanted.c_str(),
         close ? " (did you mean '" : "", close ? entries[nearest].name.c_str() : "", close ? "'?)" : "", all.c_str());
}

}  // namespace sk::model
