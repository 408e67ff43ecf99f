// Which instruction sets this machine has, and the kernels of each level.
#pragma once
#include "kernels/linear.h"
#include "kernels/ops.h"

namespace tuili {

enum class Isa : int { generic = 0, avx2 = 1, avx512 = 2 };

// Found by cpuid and xgetbv: the CPU has it and the operating system saves its registers.
// avx2 means AVX2, FMA, F16C and BMI2; avx512 means F, BW, DQ, VL and VNNI beside those.
Isa best_isa();

struct Kernels {
    const LinearKernels& linear;
    const OpKernels& ops;
};

// Throws std::invalid_argument for a level above best_isa().
Kernels kernels_of(Isa isa);

} // namespace tuili
