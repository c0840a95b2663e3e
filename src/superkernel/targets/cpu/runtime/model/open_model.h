// open_model.h: an opened package: manifest, weights, code and threads, and the descriptions that callers get.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "code.h"
#include "manifest.h"
#include "package_folder.h"
#include "team.h"
#include "weights.h"

namespace sk::model {

struct ModelOptions {
    int threads = 0;
    sk_wait wait = SK_WAIT_BALANCED;
    std::vector<int> processors;
    bool copy_weights = false;

    // Refuses what is out of range; null: the default of everything.
    static ModelOptions read(const sk_options* options);
};

class OpenModel {
  public:
    OpenModel(const HeldFolder& held, const ModelOptions& options);

    const Manifest& manifest() const { return manifest_; }
    const Weights& weights() const { return weights_; }
    const Code& code() const { return code_; }
    const std::string& path() const { return path_; }
    Team* team() const { return team_.get(); }
    int threads() const { return threads_; }
    sk_wait wait() const { return wait_; }
    const sk_entry_info& entry_info(size_t index) const { return entry_infos_[index]; }
    const sk_tensor_info& state_info(size_t index) const { return state_infos_[index]; }
    sk_model_info describe() const;
    int find_entry(const char* name) const;  // refuses a name that is none, with the nearest one

    // That keep it open. Made and looked at under a lock: see handles.h.
    std::atomic<int> uses{0};

  private:
    void describe_entries();
    std::vector<MemoryRange> memory_of_calls() const;  // that belongs to the model

    const std::string path_;  // as given
    Weights weights_;
    Manifest manifest_;
    std::string instruction_set_;
    Code code_;
    const int threads_;
    const sk_wait wait_;
    Team::Owner team_;  // null: the model has no threads
    std::vector<sk_entry_info> entry_infos_;
    std::vector<std::vector<sk_shape_info>> shape_infos_;
    std::vector<std::vector<sk_tensor_info>> tensor_infos_;
    std::vector<sk_tensor_info> state_infos_;
};

// Of a context: an open model that stays open.
class ModelUse {
  public:
    explicit ModelUse(OpenModel& model) : model_(&model) { ++model.uses; }
    ModelUse(ModelUse&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
    ~ModelUse() {
        if (model_ != nullptr) --model_->uses;
    }
    OpenModel& model() const { return *model_; }

  private:
    OpenModel* model_;
};

// The plan that a call with at most so many threads uses: the one with the most cores not above them, else the last one,
// which the calling thread then runs alone unless it needs its team.
const PlanSpec& choose_plan(const LaunchSpec& launch, int threads);

}  // namespace sk::model
