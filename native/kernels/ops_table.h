// Fills one level's OpKernels. Include after that level's vec.h.
#pragma once
#include "kernels/attention.h"
#include "kernels/ops.h"
#include "kernels/row_ops.h"
#include "sample/scans.h"

namespace tuili::TUILI_ISA {

inline constexpr OpKernels op_table(const char* isa) {
    return {
        .isa = isa,
        .rms_norm = &rms_norm,
        .layer_norm = &layer_norm,
        .add = &add,
        .scale = &scale,
        .softcap = &softcap,
        .act_mul = &act_mul,
        .weighted_sum = &weighted_sum,
        .softmax = &softmax,
        .sigmoid = &sigmoid,
        .rope = &rope,
        .write_kv = &write_kv,
        .attention = &attention,
        .attention_segment = &attention_segment,
        .attention_merge = &attention_merge,
        .row_maximum = &row_maximum,
        .sum_exp = &sum_exp,
        .mass_by_distance = &mass_by_distance,
        .run_maxima = &run_maxima,
        .find_at_least = &find_at_least,
        .find_noisy = &find_noisy,
    };
}

} // namespace tuili::TUILI_ISA
