// rank_areas.cpp: the shared memory of this process with other ranks -> ranks that will not come are marked as failed.
//
// Every rank holds a record lock on its byte of the area's file while its process lives. A rank will not come either if
// it waits for this one in another area of their group.
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
    uint64_t group;  // equal for the areas of one group of ranks
    uint32_t rank, ranks;
    std::vector<uint8_t> elsewhere;  // per rank: it is another process
    std::vector<RankLine*> windows;
    std::vector<uint64_t> astray;  // per rank: the rounds of this rank when they were last found in each other's way; or 0
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

const RankLine& line(const RankArea& area, uint32_t rank) { return area.windows[0][rank]; }

uint32_t round_of(const RankArea& area, uint32_t rank) { return __atomic_load_n(&line(area, rank).round, __ATOMIC_ACQUIRE); }

// Whether `first` has begun a round that `second` has not: it cannot end without `second`.
bool is_ahead(const RankArea& area, uint32_t first, uint32_t second) {
    if (area.windows.empty() || line(area, first).arrived == kRankFailed) return false;
    return int32_t(round_of(area, first) - round_of(area, second)) > 0;
}

// Whether the next round of this rank will be begun by the thread that is in `area` now.
bool has_same_thread(const RankArea& area, const RankArea& other) {
    return line(area, area.rank).thread != 0 && line(area, area.rank).thread == line(other, other.rank).thread;
}

// Where another rank waits for this one, while this one waits for it here; nullptr: nowhere.
const RankArea* other_way(const RankArea& area, uint32_t rank) {
    if (!is_ahead(area, area.rank, rank)) return nullptr;
    for (const RankArea* other : areas())
        if (other != &area && other->group == area.group && is_ahead(*other, rank, other->rank) &&
            has_same_thread(area, *other))
            return other;
    return nullptr;
}

// The ranks have begun different areas. Words are read one after the other: what is found twice, while this rank stays in
// its rounds, stays so for ever.
bool is_astray(RankArea& area, uint32_t rank) {
    const RankArea* other = other_way(area, rank);
    const uint64_t before = area.astray[rank];
    area.astray[rank] = other == nullptr ? 0 : uint64_t(round_of(area, area.rank)) << 32 | round_of(*other, other->rank);
    return other != nullptr && area.astray[rank] == before;
}

}  // namespace

void look_after_ranks() {
    for (RankArea* area : areas())
        for (uint32_t rank = 0; rank < area->ranks; ++rank)
            if (area->elsewhere[rank] && (has_ended(*area, rank) || is_astray(*area, rank))) mark_failed(*area, rank);
}

void forget_rank_areas() { areas().clear(); }

}  // namespace sk::host

using namespace sk::host;

extern "C" {

void* sk_rank_area_create(int32_t file, uint64_t group, int32_t rank, int32_t ranks, const uint8_t* elsewhere,
                          void* const* windows, int32_t count) {
    auto* area = new RankArea{file, group, uint32_t(rank), uint32_t(ranks), {elsewhere, elsewhere + ranks}, {}, {}};
    area->astray.resize(ranks);
    for (int32_t i = 0; i < count; ++i) area->windows.push_back(sk::rank_lines(windows[i]));
    lock_watchdog();
    areas().push_back(area);
    unlock_watchdog();
    return area;
}

// Before a launch: this rank is in `round`, in all windows.
void sk_rank_area_begin(const void* area, uint32_t round) {
    static thread_local const uint32_t thread = uint32_t(syscall(SYS_gettid));
    const auto* begun = static_cast<const RankArea*>(area);
    for (sk::RankLine* lines : begun->windows) {
        lines[begun->rank].thread = thread;
        __atomic_store_n(&lines[begun->rank].round, round, __ATOMIC_RELEASE);
    }
}

void sk_rank_area_destroy(void* area) {
    lock_watchdog();
    auto& known = areas();
    known.erase(std::remove(known.begin(), known.end(), area), known.end());
    unlock_watchdog();
    delete static_cast<RankArea*>(area);
}

}  // extern "C"
