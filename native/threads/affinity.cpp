#include "threads/affinity.h"
#include <stdexcept>
#include <string>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace tuili {

namespace {

constexpr int kMaxCpus = 65536; // the mask of a large machine does not fit a fixed cpu_set_t

[[noreturn]] void refuse(int cpu) {
    throw std::invalid_argument("the system does not let a thread be bound to CPU " + std::to_string(cpu));
}

} // namespace

#ifdef __linux__

namespace {

void bind(pthread_t thread, int cpu) {
    const size_t size = CPU_ALLOC_SIZE(kMaxCpus);
    cpu_set_t* set = CPU_ALLOC(kMaxCpus);
    CPU_ZERO_S(size, set);
    CPU_SET_S(static_cast<size_t>(cpu), size, set);
    const int error = pthread_setaffinity_np(thread, size, set);
    CPU_FREE(set);
    if (error != 0) refuse(cpu);
}

} // namespace

void pin_thread(std::thread& thread, int cpu) { bind(thread.native_handle(), cpu); }

PinnedHere::PinnedHere(int cpu) {
    if (cpu == kAnyCpu) return;
    cpu_set_t* set = CPU_ALLOC(kMaxCpus);
    if (pthread_getaffinity_np(pthread_self(), CPU_ALLOC_SIZE(kMaxCpus), set) != 0) {
        CPU_FREE(set);
        refuse(cpu);
    }
    before_ = set;
    try {
        bind(pthread_self(), cpu);
    } catch (...) {
        CPU_FREE(set);
        throw;
    }
}

PinnedHere::~PinnedHere() {
    if (!before_) return;
    auto* set = static_cast<cpu_set_t*>(before_);
    pthread_setaffinity_np(pthread_self(), CPU_ALLOC_SIZE(kMaxCpus), set);
    CPU_FREE(set);
}

#else

void pin_thread(std::thread&, int cpu) { refuse(cpu); }
PinnedHere::PinnedHere(int cpu) {
    if (cpu != kAnyCpu) refuse(cpu);
}
PinnedHere::~PinnedHere() = default;

#endif

} // namespace tuili
