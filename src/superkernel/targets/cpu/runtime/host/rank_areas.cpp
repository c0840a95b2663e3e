// rank_areas.cpp: the shared memory of this process with other ranks -> ranks that have ended are marked as failed.
//
// Every rank holds a record lock on its byte of the area's file while its process lives.
#include "rank_areas.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "program.h"
#include "superkernel/window.h"

namespace sk::host {
namespace {

struct RankArea {
    int file;
    uint32_t rank, ranks;
    std::vector<uint8_t> elsewhere;  // per rank: it is another process
    std::vector<RankLine*> windows;
};

// Changed and read under the watchdog's mutex.
std::vector<RankArea*>& areas() {
    static auto* areas = new std::vector<RankArea*>;  // never destroyed, as the watchdog
    return *areas;
}

bool has_ended(const RankArea& area, uint32_t rank) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return fcntl(area.file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

// What it has published in the present round stays valid.
void mark_failed(const RankArea& area, uint32_t rank) {
    for (RankLine* lines : area.windows) {
        const uint32_t round = lines[area.rank].round;
        std::atomic<uint32_t>& arrived = lines[rank].arrived;
        uint32_t seen = arrived.load(std::memory_order_acquire);
        if (seen == kRankFailed || has_arrived(seen, round)) continue;
        if (!arrived.compare_exchange_strong(seen, kRankFailed)) continue;
        syscall(SYS_futex, &arrived, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
    }
}

}  // namespace

void look_after_ranks() {
    for (const RankArea* area : areas())
        for (uint32_t rank = 0; rank < area->ranks; ++rank)
            if (area->elsewhere[rank] && has_ended(*area, rank)) mark_failed(*area, rank);
}

void forget_rank_areas() { areas().clear(); }

}  // namespace sk::host

using namespace sk::host;

extern "C" {

void* sk_rank_area_create(int32_t file, int32_t rank, int32_t ranks, const uint8_t* elsewhere, void* const* windows,
                          int32_t count) {
    auto* area = new RankArea{file, uint32_t(rank), uint32_t(ranks), {elsewhere, elsewhere + ranks}, {}};
    for (int32_t i = 0; i < count; ++i) area->windows.push_back(sk::rank_lines(windows[i]));
    lock_watchdog();
    areas().push_back(area);
    unlock_watchdog();
    return area;
}

// Before a launch: this rank is in `round`, in all windows.
void sk_rank_area_begin(const void* area, uint32_t round) {
    const auto* begun = static_cast<const RankArea*>(area);
    for (sk::RankLine* lines : begun->windows) lines[begun->rank].round = round;
}

void sk_rank_area_destroy(void* area) {
    lock_watchdog();
    auto& known = areas();
    known.erase(std::remove(known.begin(), known.end(), area), known.end());
    unlock_watchdog();
    delete static_cast<RankArea*>(area);
}

}  // extern "C"
