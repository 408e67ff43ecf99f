#include "kernels/avx512/bytes.h"
#include "kernels/linear_table.h"

namespace tuili {

const LinearKernels& linear_avx512() {
    static constexpr LinearKernels kernels = avx512::LinearTable::table("avx512");
    return kernels;
}

} // namespace tuili
