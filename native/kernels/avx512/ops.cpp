#include "kernels/avx512/vec.h"

#include "kernels/ops_table.h"

namespace tuili {

const OpKernels& ops_avx512() {
    static constexpr OpKernels table = avx512::op_table("avx512");
    return table;
}

} // namespace tuili
