#include "kernels/generic/bytes.h"
#include "kernels/linear_table.h"

namespace tuili {

const LinearKernels& linear_generic() {
    static constexpr LinearKernels kernels = generic::LinearTable::table("generic");
    return kernels;
}

} // namespace tuili
