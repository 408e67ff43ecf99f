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

// Thirty-two columns of a row: one cache line, so that a kernel reaches all of it from one pointer.
struct alignas(64) ActBlock {
    int8_t q[kBlockCols];
    float scale;
    float sum;               // of q, times the scale
    float half_sums[2];      // of each half of q, times the scale
    int32_t offset;          // start_word of -16 * the sums of q
    int32_t half_offsets[2]; // start_word of -32 * the sums of each half
};
static_assert(sizeof(ActBlock) == 64);

// Blocks from one row to the next: odd, so that rows fall into different cache sets.
inline int64_t act_stride(int64_t cols) { return cols / kBlockCols | 1; }

} // namespace tuili::TUILI_ISA
