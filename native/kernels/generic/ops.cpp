#include "kernels/generic/vec.h"

#include "kernels/ops_table.h"

namespace tuili {

const OpKernels& ops_generic() {
    static constexpr OpKernels table = generic::op_table("generic");
    return table;
}

} // namespace tuili
