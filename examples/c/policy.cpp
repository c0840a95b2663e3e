// policy.cpp: as policy.c, in C++: objects close themselves, errors are exceptions.
//
//     ./policy_cpp policy.sk
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include <superkernel/model.hpp>

namespace {

std::vector<std::int64_t> shape_of(const sk_tensor_info& info) { return {info.shape, info.shape + info.rank}; }

// Tensors over vectors of floats, one for each input or output.
std::vector<superkernel::Tensor> make_tensors(const sk_tensor_info* infos, int count, std::deque<std::vector<float>>& memory) {
    std::vector<superkernel::Tensor> tensors;
    for (int i = 0; i < count; ++i) {
        memory.emplace_back(infos[i].bytes / sizeof(float));
        tensors.push_back(superkernel::tensor(memory.back(), shape_of(infos[i])));
    }
    return tensors;
}

void run(const std::string& path) {
    const superkernel::Model model(path);
    superkernel::Context context(model);
    const sk_shape_info& shape = model.entry("forward").shapes[0];
    std::deque<std::vector<float>> in, out;
    const auto inputs = make_tensors(shape.inputs, shape.input_count, in);
    const auto outputs = make_tensors(shape.outputs, shape.output_count, out);
    for (std::vector<float>& values : in) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i);
    }
    context.run("forward", inputs, outputs);
    for (int i = 0; i < shape.output_count; ++i) {
        std::printf("%s:", shape.outputs[i].name);
        for (const float value : out[static_cast<std::size_t>(i)]) std::printf(" %.9g", static_cast<double>(value));
        std::printf("\n");
    }
}

}  // namespace

int main(int count, char** words) {
    if (count != 2) {
        std::fprintf(stderr, "usage: %s PACKAGE\n", words[0]);
        return 2;
    }
    try {
        run(words[1]);
    } catch (const superkernel::Error& error) {
        std::fprintf(stderr, "%s: %s\n", sk_status_name(error.status()), error.what());
        return 1;
    }
    return 0;
}
