// Quantised activations: signed bytes with one scale per 32 columns, a power of two below the row's scale.
//
// A row's scale is s = max |x| / 127; a block of 32 uses s * 2^-j, the smallest grid that still holds its own maximum. A block's
// integer sum i enters the product as i * 2^(60 - j), made by adding to the exponent field, and the row ends with * 2^-60 * s. A
// row with a NaN or an infinity gets s = NaN and zeros, so its outputs, and only its, are NaN.
//
// Include after one level's bytes.h.
#pragma once
#include "kernels/linear.h"

namespace tuili::TUILI_ISA {

inline constexpr int kBlockCols = 32;
inline constexpr int kExponentBias = 60;
inline constexpr float kUnbias = 0x1p-60f;
// Rows whose largest magnitude is below this count as zero: 127 / max must stay finite.
inline constexpr float kSmallestMax = 0x1p-110f;

// Byte offsets inside one row's record.
struct ActLayout {
    int64_t exponents; // int32 [blocks]: (60 - j) << 23
    int64_t offsets32; // int32 [blocks]: -16 * (sum of the block)
    int64_t sums;      // float [blocks]: (sum of the block) * 2^(60 - j)
    int64_t offsets16; // int32 [2 * blocks]: -32 * (sum of the half block)
    int64_t scale;     // float: s
    int64_t stride;    // an odd number of cache lines, so that rows fall into different cache sets

    explicit ActLayout(int64_t cols) {
        const int64_t blocks = cols / kBlockCols;
        exponents = (cols + 63) / 64 * 64;
        offsets32 = exponents + blocks * 4;
        sums = offsets32 + blocks * 4;
        offsets16 = sums + blocks * 4;
        scale = offsets16 + blocks * 8;
        stride = (scale + 4 + 63) / 64 * 64;
        if (stride / 64 % 2 == 0) stride += 64;
    }
};

} // namespace tuili::TUILI_ISA
