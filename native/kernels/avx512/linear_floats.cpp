#include "kernels/avx512/bytes.h"
#include "kernels/linear_float.h"

namespace tuili::avx512 {

const FormatKernels* float_kernels(Format format) { return find_float(format); }

} // namespace tuili::avx512
