// isinf: out1[i] = 1 where in1[i] is an infinity, else 0. Works on the bits, which it keeps in a workspace.
#include <superkernel/kernel.h>

#include <cstdint>
#include <cstring>

constexpr int kElements = 4096;
constexpr uint32_t kWithoutSign = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;

extern "C" void isinf_kernel(const float* in1, bool* out1, uint32_t* ws) {
    const int part = kElements / sk::block_num();
    const int begin = sk::block_idx() * part;
    std::memcpy(ws + begin, in1 + begin, part * sizeof(float));
    for (int i = begin; i < begin + part; ++i) out1[i] = (ws[i] & kWithoutSign) == kInfinity;
}
