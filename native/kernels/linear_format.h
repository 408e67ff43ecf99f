// What one ISA level knows about one format: a row of function pointers.
#pragma once
#include "kernels/linear.h"
#include "kernels/linear_acts.h"

namespace tuili::TUILI_ISA {

// Rows that one call of a product takes at most, and the results it leaves: sums [rows][16].
inline constexpr int kMaxRows = 256;

// One tile of weights times some rows of activations.
struct Product {
    const uint8_t* tile;
    int64_t cols;
    const uint8_t* const* rows; // quantised records, or float rows
    int num_rows;
    float* sums;
    uint8_t* panel; // kPanelBytes
};

struct FormatKernels {
    bool reads_acts;
    int file_cols, file_bytes; // columns and bytes of a block in the file
    size_t (*tile_bytes)(int64_t cols);
    void (*pack_row)(const uint8_t* src, int64_t cols, int r, uint8_t* tile); // into a tile of zeros
    void (*unpack_row)(const uint8_t* tile, int r, int64_t cols, float* out);
    void (*product)(const Product& p);
};

// Null where the family does not hold that format.
const FormatKernels* float_kernels(Format format);
const FormatKernels* block32_kernels(Format format);
const FormatKernels* k_quant_kernels(Format format);

// Columns that a panel holds, and its size: for each block scales and minima of both halves, and the levels.
inline constexpr int64_t kPanelCols = 1024;
inline constexpr int64_t kPanelBytes = kPanelCols / kBlockCols * (4 * 64 + 512);

} // namespace tuili::TUILI_ISA
