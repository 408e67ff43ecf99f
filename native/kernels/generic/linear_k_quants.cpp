#include "kernels/generic/bytes.h"
#include "kernels/linear_integer.h"
#include "quant/k_quants.h"

namespace tuili::generic {

const FormatKernels* k_quant_kernels(Format format) {
    switch (format) {
    case Format::Q2_K:
        return &kIntegerKernels<Q2_K>;
    case Format::Q3_K:
        return &kIntegerKernels<Q3_K>;
    case Format::Q4_K:
        return &kIntegerKernels<Q4_K>;
    case Format::Q5_K:
        return &kIntegerKernels<Q5_K>;
    case Format::Q6_K:
        return &kIntegerKernels<Q6_K>;
    case Format::IQ4_XS:
        return &kIntegerKernels<IQ4_XS>;
    default:
        return nullptr;
    }
}

} // namespace tuili::generic
