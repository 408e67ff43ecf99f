#include "threads/pool.h"
#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#ifdef __linux__
#include <sched.h>
#endif

namespace tuili {

namespace {

int affinity_cpus() {
#ifdef __linux__
    for (int cpus = 1024; cpus <= 65536; cpus *= 2) { // the mask of a large machine does not fit a fixed cpu_set_t
        cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpus));
        const size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
        const bool ok = sched_getaffinity(0, size, set) == 0;
        const int count = ok ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (ok) return count;
    }
#endif
    return static_cast<int>(std::thread::hardware_concurrency());
}

// Path of this process in the hierarchy of a v1 controller ("cpu"), or of v2 (""); empty when there is none.
std::string cgroup_path(const std::string& controller) {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) { // hierarchy:controllers:path
        const size_t a = line.find(':'), b = line.find(':', a + 1);
        if (a == std::string::npos || b == std::string::npos) continue;
        std::istringstream controllers(line.substr(a + 1, b - a - 1));
        bool match = controller.empty() && b == a + 1;
        for (std::string name; std::getline(controllers, name, ',');) match = match || name == controller;
        if (match) return line.substr(b + 1);
    }
    return "";
}

// The tightest CPU quota between the process's own group and the root, in CPUs; infinity when there is none.
template <class ReadQuota>
double tightest_quota(const std::string& mount, std::string path, ReadQuota read) {
    double best = INFINITY;
    while (true) {
        best = std::min(best, read(mount + (path == "/" ? "" : path)));
        if (path.empty() || path == "/") return best;
        path = path.substr(0, path.rfind('/'));
    }
}

double quota_v2(const std::string& folder) {
    std::ifstream file(folder + "/cpu.max");
    std::string quota;
    double period = 0;
    if (!(file >> quota >> period) || quota == "max" || period <= 0) return INFINITY;
    return std::strtod(quota.c_str(), nullptr) / period;
}

double quota_v1(const std::string& folder) {
    std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
    double quota = -1, period = 0;
    if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) return INFINITY;
    return quota / period;
}

} // namespace

int usable_cpus() {
    const double v2 = tightest_quota("/sys/fs/cgroup", cgroup_path(""), quota_v2);
    const double v1 = tightest_quota("/sys/fs/cgroup/cpu", cgroup_path("cpu"), quota_v1);
    const double quota = std::ceil(std::min(v1, v2) - 1e-9);
    const int cpus = affinity_cpus();
    return std::max(1, quota < cpus ? static_cast<int>(quota) : cpus);
}

} // namespace tuili
