// What this machine can do at best at this moment, with a number of threads: the limits that speeds are compared with.
#pragma once
#include "kernels/probe.h"
#include "program/isa.h"
#include "program/memory.h"
#include "threads/pool.h"

namespace tuili {

// Each measurement takes tens of milliseconds and gives the best of a few tries, as another guest of the host may take a moment.
class Probe {
  public:
    // `buffer_bytes` has to be much larger than the last level of cache. Throws std::bad_alloc.
    Probe(Isa isa, int num_threads, size_t buffer_bytes);

    // Bytes a second that the threads together read from memory: from 2 MiB pages (where the system grants them), as weights
    // are read, or from 4 KiB pages.
    double read_bandwidth();
    double small_page_read_bandwidth();
    // Operations a second of the threads together, a multiplication and an addition being two.
    double int8_peak() { return peak(kernels_.int8_operations); }
    double fp32_peak() { return peak(kernels_.fp32_operations); }
    // Seconds from a store on one core to its arrival on another. Needs two threads.
    double core_latency();

  private:
    double read(const Buffer& buffer);
    double peak(int64_t (*operations)(int64_t rounds, float* sink));
    void fill(Buffer& buffer);

    const ProbeKernels &kernels_, &best_;
    ThreadPool pool_;
    Buffer huge_, small_; // small_ is made when first asked for
};

} // namespace tuili
