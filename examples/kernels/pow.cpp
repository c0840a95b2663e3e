// pow: out1[i] = in1[i] to the power of in2[i], for positive in1. Two passes, through a workspace.
#include <superkernel/kernel.h>

#include <cmath>

constexpr int kElements = 4096;

extern "C" void pow_kernel(const float* in1, const float* in2, float* out1, double* ws) {
    const int part = kElements / sk::block_num();
    const int begin = sk::block_idx() * part;
    for (int i = begin; i < begin + part; ++i) ws[i] = in2[i] * std::log2(double(in1[i]));
    for (int i = begin; i < begin + part; ++i) out1[i] = float(std::exp2(ws[i]));
}
