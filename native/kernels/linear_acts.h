// Quantised activations: signed bytes with one scale per 32 columns, the block's max |x| / 127.
//
// A power of two as scale would save a multiplication, but costs up to a bit: half as much divergence from float32 again. A row
// with a NaN or an infinity gets NaN scales and zeros, so its outputs, and only its, are NaN.
//
// Include after one level's bytes.h.
#pragma once
#include "kernels/linear.h"

namespace tuili::TUILI_ISA {

inline constexpr int kBlockCols = 32;
// Blocks whose largest magnitude is below this count as zero: 127 / max must stay finite.
inline constexpr float kSmallestMax = 0x1p-110f;

// Byte offsets inside one row's record.
struct ActLayout {
    int64_t scales;    // float [blocks]
    int64_t offsets32; // int32 [blocks]: -16 * (sum of the block)
    int64_t sums;      // float [blocks]: (sum of the block) * scale
    int64_t offsets16; // int32 [2 * blocks]: -32 * (sum of the half block)
    int64_t end;
    int64_t stride; // an odd number of cache lines, so that rows fall into different cache sets

    explicit ActLayout(int64_t cols) {
        const int64_t blocks = cols / kBlockCols;
        scales = (cols + 63) / 64 * 64;
        offsets32 = scales + blocks * 4;
        sums = offsets32 + blocks * 4;
        offsets16 = sums + blocks * 4;
        end = offsets16 + blocks * 8;
        stride = (end + 63) / 64 * 64;
        if (stride / 64 % 2 == 0) stride += 64;
    }
};

} // namespace tuili::TUILI_ISA
