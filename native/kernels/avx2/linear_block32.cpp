#include "kernels/avx2/bytes.h"
#include "kernels/linear_integer.h"
#include "quant/block32.h"

namespace tuili::avx2 {

const FormatKernels* block32_kernels(Format format) {
    switch (format) {
    case Format::Q4_0:
        return &kIntegerKernels<Q4_0>;
    case Format::Q4_1:
        return &kIntegerKernels<Q4_1>;
    case Format::Q5_0:
        return &kIntegerKernels<Q5_0>;
    case Format::Q5_1:
        return &kIntegerKernels<Q5_1>;
    case Format::Q8_0:
        return &kIntegerKernels<Q8_0>;
    case Format::IQ4_NL:
        return &kIntegerKernels<IQ4_NL>;
    case Format::MXFP4:
        return &kIntegerKernels<MXFP4>;
    default:
        return nullptr;
    }
}

} // namespace tuili::avx2
