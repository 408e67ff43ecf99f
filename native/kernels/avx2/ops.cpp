#include "kernels/avx2/vec.h"

#include "kernels/ops_table.h"

namespace tuili {

const OpKernels& ops_avx2() {
    static constexpr OpKernels table = avx2::op_table("avx2");
    return table;
}

} // namespace tuili
