// Sub-kernels for the emulator's own tests: y = x with its parts in reverse order, plus one; in the ways a core has to
// reach memory. A vector core of a 1:2 op has one half of its block's part, a second half belongs to the other one.
#include <superkernel/host_kernel.h>

#include <stdexcept>

namespace {
constexpr int64_t kPart = 32;  // elements of a block

struct Share {
    int64_t from, to, count;
};
Share share() {
    int64_t count = kPart / sk::sub_block_num(), inside = sk::sub_block_idx() * count;
    return {(sk::block_num() - 1 - sk::block_idx()) * kPart + inside, sk::block_idx() * kPart + inside, count};
}

void turn(uint64_t slots, int source, int target) {
    auto [from, to, count] = share();
    int32_t local[kPart];
    (sk::buffer<int32_t>(slots, source) + from).copy_in(local, count);
    for (int64_t i = 0; i < count; ++i) local[i] += 1;
    (sk::buffer<int32_t>(slots, target) + to).copy_out(local, count);
}
}  // namespace

extern "C" {

void bulk(uint64_t slots) { turn(slots, 0, 1); }  // the transfer engines

void vectors(uint64_t slots) {  // a mixed op in which the cube cores do nothing
    if (!sk::is_cube()) turn(slots, 0, 1);
}

void element(uint64_t slots) {  // the data cache, which the entry must maintain
    auto x = sk::buffer<int32_t>(slots, 0), y = sk::buffer<int32_t>(slots, 1);
    auto [from, to, count] = share();
    for (int64_t i = 0; i < count; ++i) y.store(to + i, x.load(from + i) + 1);
}

void early(uint64_t slots) {
    sk::work(50);
    sk::wait_previous();
    turn(slots, 0, 1);
    sk::set_next();
    sk::work(50);
}

void late(uint64_t slots) { turn(slots, 0, 1); }  // said to wait and signal inside, and does not

void meeting(uint64_t slots) {  // through a third buffer, meeting the others in between
    turn(slots, 0, 2);
    sk::sync_all();
    turn(slots, 2, 1);
    sk::sync_all();
}

void endless(uint64_t slots) {
    auto x = sk::buffer<int32_t>(slots, 0);
    while (true) x.dcci(0);
}

void hangs(uint64_t) {
    volatile bool forever = true;
    while (forever) {}
}

void beyond(uint64_t slots) {
    int32_t local;
    (sk::buffer<int32_t>(slots, 0) + sk::block_num() * kPart).copy_in(&local, 1);
}

void talks(uint64_t slots) {
    sk::print("block %ld of %ld got %ld\n", long(sk::block_idx()), long(sk::block_num()), long(sk::scalar<int64_t>(slots, 2)));
    turn(slots, 0, 1);
}

void throws(uint64_t) { throw std::runtime_error("no more"); }
}
