#include "kernels/generic/bytes.h"
#include "kernels/linear_float.h"

namespace tuili::generic {

const FormatKernels* float_kernels(Format format) { return find_float(format); }

} // namespace tuili::generic
