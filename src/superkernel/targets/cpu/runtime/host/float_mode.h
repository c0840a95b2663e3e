// float_mode.h: how the calling thread rounds and treats denormal numbers -> the same on the threads of its launch.
#pragma once

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace sk::host {

// Without it a result would depend on which thread computes it: torch.set_flush_denormal, and programs compiled with
// -ffast-math, change one thread. Masks and flags of exceptions stay those of each thread.
class FloatMode {
  public:
    static FloatMode of_this_thread() { return FloatMode(read() & kMode); }
    FloatMode() = default;

    // Sets a mode on this thread during its lifetime.
    class Scope {
      public:
        explicit Scope(FloatMode mode) : before_(read()), wanted_((before_ & ~kMode) | mode.bits_) {
            if (wanted_ != before_) write(wanted_);
        }
        ~Scope() {
            if (wanted_ != before_) write((read() & ~kMode) | (before_ & kMode));
        }
        Scope(const Scope&) = delete;

      private:
        const uint64_t before_, wanted_;
    };

  private:
#if defined(__x86_64__)
    static constexpr uint64_t kMode = 0xE040;  // of MXCSR: flush to zero, rounding, denormals are zeros
    static uint64_t read() { return _mm_getcsr(); }
    static void write(uint64_t word) { _mm_setcsr(unsigned(word)); }
#elif defined(__aarch64__)
    static constexpr uint64_t kMode = 0x3C80000;  // of FPCR: default NaN, flush to zero, rounding, flush to zero in half precision
    static uint64_t read() {
        uint64_t word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void write(uint64_t word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
    static constexpr uint64_t kMode = 0;
    static uint64_t read() { return 0; }
    static void write(uint64_t) {}
#endif

    explicit FloatMode(uint64_t bits) : bits_(bits) {}
    uint64_t bits_ = 0;
};

}  // namespace sk::host
