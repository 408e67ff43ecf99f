#include "kernels/avx2/bytes.h"
#include "kernels/linear_float.h"

namespace tuili::avx2 {

const FormatKernels* float_kernels(Format format) { return find_float(format); }

} // namespace tuili::avx2
