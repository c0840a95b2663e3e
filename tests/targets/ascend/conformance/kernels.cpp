// Sub-kernels of the conformance cases. Every output depends on every input, across blocks, so that an order that is
// not kept shows. A buffer is kLines lines of 16 numbers; worker w of W computes the lines l with l mod W == w, so that
// results do not depend on the number of blocks.
//
// Slots: salt; shape (inputs, outputs, inouts, workers per block, whether to maintain the cache); then the buffers.
#include <superkernel/host_kernel.h>

namespace {

constexpr int64_t kLines = 24, kLine = 16;

enum class By { transfer, cache };

struct Work {
    uint64_t slots, salt, shape;
    By by;

    Work(uint64_t first_slot, By how = By::transfer)
        : slots(first_slot), salt(sk::slot(first_slot, 0)), shape(sk::slot(first_slot, 1)), by(how) {}

    int ins() const { return int(shape & 15); }
    int outs() const { return int(shape >> 4 & 15); }
    int inouts() const { return int(shape >> 8 & 15); }
    int64_t workers_per_block() const { return int64_t(shape >> 12 & 15); }
    bool own_cache() const { return shape >> 16 & 1; }
    int64_t workers() const { return sk::block_num() * workers_per_block(); }
    int64_t worker() const {
        int64_t place = workers_per_block() == 1 || sk::is_cube() ? 0 : 1 + sk::sub_block_idx();
        return sk::block_idx() * workers_per_block() + place;
    }
    sk::gm<uint32_t> buffer(int number) const { return sk::buffer<uint32_t>(slots, 2 + number); }

    void read(uint32_t* local, int number, int64_t line) const {
        auto from = buffer(number) + line * kLine;
        if (by == By::transfer) {
            from.copy_in(local, kLine);
        } else {
            if (own_cache()) from.dcci(0);
            for (int64_t i = 0; i < kLine; ++i) local[i] = from.load(i);
        }
    }
    void write(const uint32_t* local, int number, int64_t line) const {
        auto to = buffer(number) + line * kLine;
        if (by == By::transfer) {
            to.copy_out(local, kLine);
        } else {
            for (int64_t i = 0; i < kLine; ++i) to.store(i, local[i]);
            if (own_cache()) to.dcci(0);
        }
    }

    void run(uint32_t factor = 31, int workspace = -1) const {
        for (int64_t line = worker(); line < kLines; line += workers()) {
            uint32_t sum[kLine], local[kLine];
            for (auto& one : sum) one = uint32_t(salt);
            for (int k = 0; k < ins(); ++k) {
                read(local, k, (line * 5 + k * 7 + int64_t(salt)) % kLines);
                for (int64_t i = 0; i < kLine; ++i) sum[i] = sum[i] * factor + local[i];
            }
            if (workspace >= 0) {
                read(local, workspace, (line + int64_t(salt)) % kLines);
                for (int64_t i = 0; i < kLine; ++i) sum[i] += local[i];
            }
            for (int k = 0; k < outs(); ++k) {
                for (int64_t i = 0; i < kLine; ++i) local[i] = sum[i] + uint32_t(k) * 977;
                write(local, ins() + k, line);
            }
            for (int k = 0; k < inouts(); ++k) {
                read(local, ins() + outs() + k, line);
                for (int64_t i = 0; i < kLine; ++i) local[i] = local[i] * factor + sum[i];
                write(local, ins() + outs() + k, line);
            }
        }
    }

    void meet(int workspace) const {
        for (int64_t line = worker(); line < kLines; line += workers()) {
            uint32_t local[kLine] = {};
            if (ins()) read(local, 0, (line * 11 + int64_t(salt)) % kLines);
            for (auto& one : local) one = one * 3 + uint32_t(line);
            write(local, workspace, line);
        }
        sk::sync_all();
        run(31, workspace);
        if (salt & 1) sk::sync_all();
    }
};

}  // namespace

extern "C" {
void plain(uint64_t slots) { Work(slots).run(); }
void prints(uint64_t slots) {
    Work work(slots);
    sk::print("salt %d block %d of %d\n", int(work.salt), int(sk::block_idx()), int(sk::block_num()));
    work.run();
}
void cached(uint64_t slots) { Work(slots, By::cache).run(); }
void early(uint64_t slots) {
    sk::work(40);
    sk::wait_previous();
    Work(slots).run();
    sk::set_next();
    sk::work(40);
}
void early_wait(uint64_t slots) {
    sk::work(40);
    sk::wait_previous();
    Work(slots).run();
}
void early_set(uint64_t slots) {
    Work(slots).run();
    sk::set_next();
    sk::work(40);
}
void meets(uint64_t slots) {
    Work work(slots);
    work.meet(work.ins() + work.outs() + work.inouts());
}
void tiled_1(uint64_t slots) { Work(slots).run(33); }
void tiled_5(uint64_t slots) { Work(slots).run(37); }
void tiled_meets(uint64_t slots) {
    Work work(slots);
    work.meet(work.ins() + work.outs() + work.inouts());
}
}
