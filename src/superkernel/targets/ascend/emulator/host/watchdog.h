// watchdog.h: reports an emulated launch whose cores take no steps.
#pragma once
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "machine.h"

namespace emulator {

// An endless loop inside a sub-kernel takes no steps and cannot be stopped from outside: report it and end the process.
class Watchdog {
public:
    Watchdog(const SharedState& shared, const Settings& settings)
        : shared_(shared), settings_(settings), thread_([this] { watch(); }) {}
    ~Watchdog() {
        over_ = true;
        thread_.join();
    }

private:
    void watch() {
        // counted in slices, so that a process that was stopped for a while is not mistaken for one that hangs
        constexpr double slice_s = 0.01;
        double idle_s = 0;
        uint64_t seen = shared_.steps;
        while (!over_) {
            std::this_thread::sleep_for(std::chrono::duration<double>(slice_s));
            idle_s = seen == shared_.steps ? idle_s + slice_s : 0;
            seen = shared_.steps;
            if (idle_s < settings_.watchdog_s) continue;
            const Machine* chip = shared_.active;
            const Core* core = chip ? chip->running : nullptr;
            std::string where = core ? chip->who(*core) + ", " + chip->where(*core) : std::string("an agent outside");
            std::string text = "superkernel: the emulated launch makes no progress: " + where + "\n";
            ssize_t written = write(2, text.data(), text.size());
            if (settings_.watchdog_exits != 0) _exit(written < 0 ? 71 : 70);
            idle_s = 0;  // the next report comes after another period
        }
    }

    const SharedState& shared_;
    const Settings& settings_;
    std::atomic<bool> over_{false};
    std::thread thread_;
};

}  // namespace emulator
