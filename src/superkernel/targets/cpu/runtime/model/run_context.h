// run_context.h: what one caller runs in: states, scratch memory, and launches whose slots are filled.
#pragma once

#include <memory>
#include <vector>

#include "launch_state.h"
#include "open_model.h"

namespace sk::model {

// Memory of the system, zeroed, in huge pages where it is large; begins `lead` bytes behind a page.
class Scratch {
  public:
    Scratch(int64_t bytes, int64_t lead);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    char* data() const { return data_; }

  private:
    char* data_ = nullptr;
    void* mapped_ = nullptr;
    size_t mapped_bytes_ = 0;
};

class RunContext {
  public:
    RunContext(ModelUse model, int threads);

    OpenModel& model() const { return model_; }
    // `size`: of the bucket dimension; 0: the whole bucket, or there is none.
    void run(int entry, int shape, int64_t size, void* const* inputs, void* const* outputs);
    void run_tensors(const char* entry, const sk_tensor* inputs, const sk_tensor* outputs);
    void reset();
    void copy_states(const RunContext& from);
    void get_state(const char* name, void* data, size_t bytes) const;
    void set_state(const char* name, const void* data, size_t bytes);

  private:
    // A slot that depends on the arguments of a call.
    struct Patch {
        int32_t slot, argument;  // inputs, then outputs
        int64_t offset, bytes;
    };
    struct BoundLaunch {
        std::unique_ptr<LaunchState> state;
        std::vector<Patch> patches;
    };
    struct BoundShape {
        const ShapeSpec* spec;
        std::vector<BoundLaunch> launches;
        std::vector<int64_t> staged;  // per input and output: where its bucket lies in the scratch memory; -1: nowhere
    };

    int64_t lay_out_scratch();
    void bind(BoundShape& bound, const EntrySpec& entry, int threads);
    char* address(const Place& place, const PlanSpec* plan, size_t argument) const;
    void run_shape(BoundShape& bound, int64_t size, void* const* inputs, void* const* outputs);
    void check_addresses(const EntrySpec& entry, const ShapeSpec& shape, int64_t size, void* const* inputs,
                         void* const* outputs) const;
    const StateSpec& find_state(const char* name, size_t bytes) const;

    const ModelUse use_;
    OpenModel& model_;
    int64_t launch_arena_ = 0;  // offset in the scratch memory
    std::vector<std::vector<BoundShape>> entries_;
    std::unique_ptr<Scratch> scratch_, states_;
    std::vector<char*> arguments_;  // of the running call
};

// The shape of an entry that arguments have, and the size of its bucket dimension; refused where there is none.
struct ShapeMatch {
    int shape;
    int64_t size;
};
ShapeMatch match_shape(const EntrySpec& entry, const sk_tensor* inputs, const sk_tensor* outputs);
int64_t bytes_in_bucket(const TensorSpec& tensor, int64_t size);

}  // namespace sk::model
