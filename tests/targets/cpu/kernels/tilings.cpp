// tilings.cpp: tiling functions for dynamic ops that call `twice` or `gather` of small.cpp.
#include <superkernel/kernel.h>
#include <superkernel/tiling.h>

namespace {

int64_t first(const sk_tiling_argument& argument) { return *static_cast<const int64_t*>(argument.address); }

}  // namespace

extern "C" {

// The first number of x says it all: the key is 2 or 3, and there are 1 to most_blocks blocks.
int by_first_number(const sk_tiling_args* in, sk_tiling_result* out) {
    const int64_t number = first(in->argument[0]);
    out->key = 2 + (number & 1);
    out->blocks = 1 + ((number >> 1) & 0xff) % in->most_blocks;
    return 0;
}

int no_blocks(const sk_tiling_args*, sk_tiling_result* out) {
    out->key = 2;
    out->blocks = 0;
    return 0;
}

int all_blocks(const sk_tiling_args* in, sk_tiling_result* out) {
    out->blocks = in->most_blocks;
    return 0;
}

int nothing_set(const sk_tiling_args*, sk_tiling_result*) { return 0; }

// The first number of z says what goes wrong: 1 unknown key, 2 too many blocks, 3 a status, 4 a message.
int as_told(const sk_tiling_args* in, sk_tiling_result* out) {
    const int64_t what = first(in->argument[1]);
    out->key = what == 1 ? 5 : 2;
    out->blocks = what == 2 ? in->most_blocks + 1 : 1;
    if (what == 4) sk::fail("the first number is 4");
    return what == 3 ? -17 : 0;
}

// Skips the op unless every argument of `twice_by` is what superkernel/tiling.h says of it.
int checks_arguments(const sk_tiling_args* in, sk_tiling_result* out) {
    const sk_tiling_argument* const x = sk_tiling_find(in, "x");
    const sk_tiling_argument* const factor = sk_tiling_find(in, "factor");
    const sk_tiling_argument* const z = sk_tiling_find(in, "z");
    const sk_tiling_argument* const room = sk_tiling_find(in, "room");
    const bool found = in->count == 4 && x == &in->argument[0] && factor == &in->argument[1] && z != nullptr &&
                       room != nullptr && sk_tiling_find(in, "y") == nullptr;
    if (!found || x->bytes != 48 * 8 || x->scalar != 0 || x->address == nullptr) return 1;
    if (factor->address != nullptr || factor->bytes != 0 || factor->scalar != 7) return 2;
    if (z->address != nullptr || z->bytes != 40 * 8) return 3;  // out, from its ninth number on
    if (room->address != nullptr || room->bytes != 48 * 8) return 4;
    if (in->most_blocks != 3) return 5;
    out->blocks = 3;
    return 0;
}

// What kernel.h offers to sub-kernels does nothing here.
int uses_kernel_h(const sk_tiling_args*, sk_tiling_result* out) {
    sk::wait_previous();
    sk::sync_all();
    sk::set_next();
    out->blocks = 2 * sk::block_num() + sk::block_idx();
    return 0;
}

}
int by_reference(const sk_tiling_args&, sk_tiling_result*) { return 0; }
namespace nested {
int all(const sk_tiling_args* in, sk_tiling_result* out) { return all_blocks(in, out); }
}  // namespace nested
extern "C" {

void scaled(const int64_t* x, int64_t factor, int64_t* z, int64_t*) {
    for (int i = sk_block_idx(); i < 40; i += sk_block_num()) z[i] = factor * x[i];
}
}
