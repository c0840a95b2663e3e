// shape_match.cpp: dtypes and shapes of the arguments of a call -> the shape of the entry that fits them.
#include <string>

#include "dtypes.h"
#include "failure.h"
#include "run_context.h"

namespace sk::model {
namespace {

std::string spell(sk_dtype dtype, const int64_t* shape, size_t rank) {
    std::string text = std::string(sk_dtype_name(dtype)) + "[";
    for (size_t i = 0; i < rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

// size: what the arguments before it have in the bucket's dimension; 0: none of them has it.
std::string spell(const TensorSpec& tensor, const ShapeSpec& shape, int64_t size) {
    std::string text = std::string(sk_dtype_name(tensor.dtype)) + "[";
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
        const bool bucket = int32_t(i) == tensor.bucket_axis;
        text += i > 0 ? ", " : "";
        text += bucket && size != 0 ? std::to_string(size) : (bucket ? "1 to " : "") + std::to_string(tensor.shape[i]);
        if (bucket) text += " (" + shape.bucket_name + ")";
    }
    return text + "]";
}

enum class Fit { kFits, kDtype, kShape };

Fit fit(const sk_tensor& given, const TensorSpec& tensor, int64_t& size) {
    if (given.dtype != tensor.dtype) return Fit::kDtype;
    if (given.rank != int32_t(tensor.shape.size())) return Fit::kShape;
    for (int32_t axis = 0; axis < given.rank; ++axis) {
        const int64_t length = given.shape[axis];
        if (axis == tensor.bucket_axis) {
            if (length < 1 || length > tensor.shape[size_t(axis)] || (size != 0 && size != length)) return Fit::kShape;
            size = length;
        } else if (length != tensor.shape[size_t(axis)]) {
            return Fit::kShape;
        }
    }
    return Fit::kFits;
}

void check_tensor(const EntrySpec& entry, const sk_tensor& given, const TensorSpec& tensor) {
    if (find_dtype(given.dtype) == nullptr) {
        fail(SK_ERROR_DTYPE, "entry '%s': %s has the dtype %d, which does not exist", entry.name.c_str(), tensor.name.c_str(),
             int(given.dtype));
    }
    if (given.rank < 0 || given.rank > kMostRank || (given.rank > 0 && given.shape == nullptr)) {
        fail(SK_ERROR_SHAPE, "entry '%s': %s has the rank %d or no shape", entry.name.c_str(), tensor.name.c_str(), given.rank);
    }
}

struct Mismatch {
    Fit fit = Fit::kFits;
    size_t fitting = 0;  // arguments before the one that does not fit
    int64_t bucket = 0;
    std::string sentence;
};

// Whether the sentence of `other` says more than that of `known`: more of the call fits its shape, or its bucket is larger.
bool says_more(const Mismatch& other, const Mismatch& known) {
    if (other.fit != known.fit) return known.fit == Fit::kFits || other.fit == Fit::kShape;
    return other.fitting != known.fitting ? other.fitting > known.fitting : other.bucket > known.bucket;
}

// The first argument that does not fit.
Mismatch compare(const ShapeSpec& shape, const sk_tensor* inputs, const sk_tensor* outputs, int64_t& size) {
    for (const bool output : {false, true}) {
        const std::vector<TensorSpec>& tensors = output ? shape.outputs : shape.inputs;
        for (size_t i = 0; i < tensors.size(); ++i) {
            const sk_tensor& given = output ? outputs[i] : inputs[i];
            const int64_t before = size;
            const Fit found = fit(given, tensors[i], size);
            if (found == Fit::kFits) continue;
            return {found, output ? shape.inputs.size() + i : i, shape.bucket_size,
                    std::string(output ? "output '" : "input '") + tensors[i].name + "' is " +
                        spell(given.dtype, given.shape, size_t(given.rank)) + " and must be " + spell(tensors[i], shape, before)};
        }
    }
    return {};
}

}  // namespace

ShapeMatch match_shape(const EntrySpec& entry, const sk_tensor* inputs, const sk_tensor* outputs) {
    const ShapeSpec& first = entry.shapes[0];
    if ((inputs == nullptr && !first.inputs.empty()) || (outputs == nullptr && !first.outputs.empty())) {
        fail(SK_ERROR_ARGUMENT, "entry '%s' takes %zu inputs and %zu outputs; null was given", entry.name.c_str(),
             first.inputs.size(), first.outputs.size());
    }
    for (size_t i = 0; i < first.inputs.size(); ++i) check_tensor(entry, inputs[i], first.inputs[i]);
    for (size_t i = 0; i < first.outputs.size(); ++i) check_tensor(entry, outputs[i], first.outputs[i]);
    ShapeMatch best{-1, 0};
    Mismatch nearest;
    for (size_t i = 0; i < entry.shapes.size(); ++i) {
        const ShapeSpec& shape = entry.shapes[i];
        int64_t size = 0;
        Mismatch mismatch = compare(shape, inputs, outputs, size);
        if (mismatch.fit == Fit::kFits) {
            const bool smaller = best.shape < 0 || shape.bucket_size < entry.shapes[size_t(best.shape)].bucket_size;
            if (smaller) best = {int(i), size};
        } else if (says_more(mismatch, nearest)) {
            nearest = std::move(mismatch);
        }
    }
    if (best.shape >= 0) return best;
    const std::string more = entry.shapes.size() > 1 ? "; none of the entry's " + std::to_string(entry.shapes.size()) +
                                                           " sets of shapes fits" : "";
    fail(nearest.fit == Fit::kDtype ? SK_ERROR_DTYPE : SK_ERROR_SHAPE, "entry '%s': %s%s", entry.name.c_str(),
         nearest.sentence.c_str(), more.c_str());
}

int64_t bytes_in_bucket(const TensorSpec& tensor, int64_t size) {
    if (size == 0 || tensor.bucket_axis < 0) return tensor.bytes;
    const int64_t whole = tensor.shape[size_t(tensor.bucket_axis)];
    return whole == 0 ? 0 : tensor.bytes / whole * size;
}

}  // namespace sk::model
