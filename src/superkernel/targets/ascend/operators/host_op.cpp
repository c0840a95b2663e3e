// host_op.cpp: an op of a model on the emulated chip: kernels for the host, called on copies in a core's local memory.
// Compiled once and joined with the few lines that call the kernels of an op.
#include <superkernel/host_kernel.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr uint64_t line = 64;
// Cores take turns and change only inside of the emulator's functions: these belong to the core that is in a call.
int block, blocks;
std::string failure;

}  // namespace

extern "C" {

// Local memory. What a kernel does not write keeps a pattern that is no result.
char* host_op_take(uint64_t bytes) {
    void* taken = std::aligned_alloc(line, (bytes + 2 * line - 1) / line * line);
    std::memset(taken, 0xA5, bytes);
    return static_cast<char*>(taken);
}

void host_op_give_back(char* taken) { std::free(taken); }

void host_op_read(uint64_t first_slot, int parameter, char* local, uint64_t bytes) {
    sk::buffer<char>(first_slot, parameter).copy_in(local, static_cast<int64_t>(bytes));
}

// for (host_op_begin(n); host_op_next();) kernel(...): all blocks of a kernel, in order
void host_op_begin(int count) {
    block = -1, blocks = count;
    failure.clear();
}
int host_op_next(void) {
    if (!failure.empty()) {
        static char text[512];
        std::snprintf(text, sizeof text, "%s", failure.c_str());
        sk::fail(text);
    }
    return ++block < blocks;
}

// The part of a result that this core stores: parts are equal, in whole lines. A block of a mixed op has a cube core and
// so many vector cores.
void host_op_write_part(uint64_t first_slot, int parameter, const char* local, uint64_t bytes, uint64_t vectors) {
    const uint64_t writer = vectors == 0 || sk::is_cube() ? 0 : 1 + sk::sub_block_idx();
    const uint64_t writers = sk::block_num() * (1 + vectors), number = sk::block_idx() * (1 + vectors) + writer;
    const uint64_t lines = (bytes + line - 1) / line, each = lines / writers, more = lines % writers;
    const uint64_t first = (number * each + (number < more ? number : more)) * line;
    const uint64_t last = first + (each + (number < more ? 1 : 0)) * line;
    const uint64_t end = last < bytes ? last : bytes;
    if (first >= end) return;
    (sk::buffer<char>(first_slot, parameter) + static_cast<int64_t>(first))
        .copy_out(local + first, static_cast<int64_t>(end - first));
}

// What superkernel/kernel.h declares, for kernels that run one block after the other.
int sk_block_idx(void) { return block; }
int sk_block_num(void) { return blocks; }
void sk_wait_previous(void) {}
void sk_set_next(void) {}
void sk_sync_all(void) { failure = "a kernel for the host meets in sync_all, which blocks in sequence cannot"; }
void sk_fail(const char* message) { failure = *message ? message : "failed"; }

}  // extern "C"
