// What one core of this machine can do at best, measured with the instructions that a level's kernels are made of.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tuili {

struct ProbeKernels {
    // Reads n bytes (a multiple of 512) as fast as it can; returns something that depends on them.
    uint64_t (*read)(const uint8_t* p, size_t n);
    // Multiplications and additions (two operations each) on registers alone; return how many operations that was. `sink` gets
    // something that depends on all of them.
    int64_t (*int8_operations)(int64_t rounds, float* sink);
    int64_t (*fp32_operations)(int64_t rounds, float* sink);
};

const ProbeKernels& probe_generic();
const ProbeKernels& probe_avx2();
const ProbeKernels& probe_avx512();

} // namespace tuili
