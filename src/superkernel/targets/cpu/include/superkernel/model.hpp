// model.hpp: model.h for C++17: objects that close what they open, errors as exceptions, std::vector as tensors.
//
//     superkernel::Model model("policy.sk");
//     superkernel::Context context(model);
//     context.run("forward", {superkernel::tensor(x, {1, 24})}, {superkernel::tensor(y, {1, 6})});
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model.h"

namespace superkernel {

// What went wrong; what() is the sentence of the library.
class Error : public std::runtime_error {
  public:
    Error(sk_status status, const std::string& sentence) : std::runtime_error(sentence), status_(status) {}
    sk_status status() const noexcept { return status_; }

  private:
    sk_status status_;
};

inline void check(sk_status status) {
    if (status != SK_OK) throw Error(status, sk_last_error());
}

template <class T> struct DtypeOf;
template <> struct DtypeOf<float> { static constexpr sk_dtype value = SK_FLOAT32; };
template <> struct DtypeOf<double> { static constexpr sk_dtype value = SK_FLOAT64; };
template <> struct DtypeOf<std::int8_t> { static constexpr sk_dtype value = SK_INT8; };
template <> struct DtypeOf<std::uint8_t> { static constexpr sk_dtype value = SK_UINT8; };
template <> struct DtypeOf<std::int16_t> { static constexpr sk_dtype value = SK_INT16; };
template <> struct DtypeOf<std::int32_t> { static constexpr sk_dtype value = SK_INT32; };
template <> struct DtypeOf<std::int64_t> { static constexpr sk_dtype value = SK_INT64; };
template <> struct DtypeOf<bool> { static constexpr sk_dtype value = SK_BOOL; };

// An argument: memory of the caller and its shape.
class Tensor {
  public:
    Tensor(void* data, sk_dtype dtype, std::vector<std::int64_t> shape)
        : data_(data), dtype_(dtype), shape_(std::move(shape)) {}
    sk_tensor view() const { return {data_, dtype_, static_cast<std::int32_t>(shape_.size()), shape_.data()}; }

  private:
    void* data_;
    sk_dtype dtype_;
    std::vector<std::int64_t> shape_;
};

// The library does not write to inputs, so that constant memory may be passed as one.
template <class T>
Tensor tensor(const T* data, std::vector<std::int64_t> shape) {
    return Tensor(const_cast<T*>(data), DtypeOf<T>::value, std::move(shape));
}

// The whole of a vector; its size must be that of the shape.
template <class T>
Tensor tensor(const std::vector<T>& values, std::vector<std::int64_t> shape) {
    std::uint64_t elements = 1;
    for (const std::int64_t size : shape) elements *= static_cast<std::uint64_t>(size);
    if (elements != values.size()) {
        throw Error(SK_ERROR_SHAPE, "a vector of " + std::to_string(values.size()) + " elements was given a shape of " +
                                        std::to_string(elements));
    }
    return tensor(values.data(), std::move(shape));
}

inline sk_options default_options() {
    sk_options options{};
    options.size = sizeof options;
    return options;
}

class Model {
  public:
    explicit Model(const std::string& path) { check(sk_model_open(path.c_str(), &model_)); }
    Model(const std::string& path, const sk_options& options) { check(sk_model_open_with(path.c_str(), &options, &model_)); }
    ~Model() { sk_model_close(model_); }  // contexts must be gone: declare them after their model
    Model(Model&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
    Model& operator=(Model&& other) noexcept {
        std::swap(model_, other.model_);
        return *this;
    }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    sk_model* get() const { return model_; }
    sk_model_info info() const {
        sk_model_info found;
        check(sk_model_describe(model_, &found));
        return found;
    }
    const sk_entry_info& entry(const std::string& name) const {
        std::int32_t index = 0;
        const sk_entry_info* found = nullptr;
        check(sk_entry_index(model_, name.c_str(), &index));
        check(sk_model_entry(model_, index, &found));
        return *found;
    }

  private:
    sk_model* model_ = nullptr;
};

class Context {
  public:
    explicit Context(const Model& model) : model_(model.get()) { check(sk_context_create(model_, nullptr, &context_)); }
    ~Context() { sk_context_destroy(context_); }
    Context(Context&& other) noexcept : model_(other.model_), context_(std::exchange(other.context_, nullptr)) {}
    Context& operator=(Context&& other) noexcept {
        std::swap(model_, other.model_);
        std::swap(context_, other.context_);
        return *this;
    }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    sk_context* get() const { return context_; }
    void run(const std::string& entry, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
        check_counts(entry, inputs.size(), outputs.size());
        const std::vector<sk_tensor> in = views(inputs), out = views(outputs);
        check(sk_run(context_, entry.c_str(), in.data(), out.data()));
    }
    void reset() { check(sk_context_reset(context_)); }
    void copy_from(const Context& other) { check(sk_context_copy(context_, other.context_)); }
    template <class T>
    void get_state(const std::string& name, std::vector<T>& values) const {
        check(sk_state_get(context_, name.c_str(), values.data(), values.size() * sizeof(T)));
    }
    template <class T>
    void set_state(const std::string& name, const std::vector<T>& values) {
        check(sk_state_set(context_, name.c_str(), values.data(), values.size() * sizeof(T)));
    }

  private:
    static std::vector<sk_tensor> views(const std::vector<Tensor>& tensors) {
        std::vector<sk_tensor> found;
        for (const Tensor& tensor : tensors) found.push_back(tensor.view());
        return found;
    }

    // sk_run reads as many tensors as the entry has.
    void check_counts(const std::string& entry, std::size_t inputs, std::size_t outputs) const {
        std::int32_t index = 0;
        const sk_entry_info* found = nullptr;
        check(sk_entry_index(model_, entry.c_str(), &index));
        check(sk_model_entry(model_, index, &found));
        const std::size_t wanted_inputs = static_cast<std::size_t>(found->shapes[0].input_count);
        const std::size_t wanted_outputs = static_cast<std::size_t>(found->shapes[0].output_count);
        if (inputs == wanted_inputs && outputs == wanted_outputs) return;
        throw Error(SK_ERROR_ARGUMENT, "entry '" + entry + "' has inputs: " + std::to_string(wanted_inputs) + ", outputs: " +
                                           std::to_string(wanted_outputs) + "; given were inputs: " + std::to_string(inputs) +
                                           ", outputs: " + std::to_string(outputs));
    }

    sk_model* model_ = nullptr;
    sk_context* context_ = nullptr;
};

}  // namespace superkernel
