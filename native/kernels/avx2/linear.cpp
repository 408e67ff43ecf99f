#include "kernels/avx2/bytes.h"
#include "kernels/linear_table.h"

namespace tuili {

const LinearKernels& linear_avx2() {
    static constexpr LinearKernels kernels = avx2::LinearTable::table("avx2");
    return kernels;
}

} // namespace tuili
