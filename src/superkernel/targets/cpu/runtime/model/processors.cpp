// processors.cpp: affinity and the CPU quotas of control groups -> a number of processors.
#include "processors.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace sk::model {
namespace {

std::string read_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// Quota and period in microseconds; 0: no limit.
double ratio(const std::string& quota, const std::string& period) {
    const double limit = atof(quota.c_str()), per = atof(period.c_str());
    return limit > 0 && per > 0 ? limit / per : 0;
}

double limit_v2(const std::string& group) {
    std::istringstream words(read_line(group + "/cpu.max"));
    std::string quota, period = "100000";
    words >> quota >> period;
    return ratio(quota, period);
}

double limit_v1(const std::string& group) {
    return ratio(read_line(group + "/cpu.cfs_quota_us"), read_line(group + "/cpu.cfs_period_us"));
}

// The least limit of a group and of all groups around it.
double least_limit(const std::vector<std::string>& mounts, std::string group, double (*limit)(const std::string&)) {
    double least = 0;
    for (;;) {
        for (const std::string& mount : mounts) {
            const double found = limit(mount + group);
            if (found > 0 && (least == 0 || found < least)) least = found;
        }
        if (group.empty()) return least;
        group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
}

}  // namespace

int processor_quota() {
    std::ifstream groups("/proc/self/cgroup");
    double least = 0;
    for (std::string line; std::getline(groups, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        std::string group = line.substr(second + 1);
        if (group == "/" || group.find("..") != std::string::npos) group.clear();
        double found = 0;
        if (controllers == ",,") {
            found = least_limit({"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}, group, limit_v2);
        } else if (controllers.find(",cpu,") != std::string::npos) {
            found = least_limit({"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}, group, limit_v1);
        }
        if (found > 0 && (least == 0 || found < least)) least = found;
    }
    return least == 0 ? 0 : std::max(1, int(least));
}

int usable_processors() {
    cpu_set_t set;
    CPU_ZERO(&set);
    // more processors than the set has room for: EINVAL
    const int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(sysconf(_SC_NPROCESSORS_ONLN));
    const int quota = processor_quota();
    return std::max(1, quota == 0 ? allowed : std::min(allowed, quota));
}

}  // namespace sk::model
