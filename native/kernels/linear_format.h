// What one ISA level knows about one format: a row of function pointers.
#pragma once
#include "kernels/linear.h"
#include "kernels/linear_acts.h"

namespace tuili::TUILI_ISA {

// Rows and tiles that one call of a product takes at most. Of so many rows, the columns of one panel stay in the L2 cache while
// all tiles are multiplied.
inline constexpr int kMaxRows = 128, kMaxTiles = 8;

// Some tiles of weights times some rows of activations.
struct Product {
    const uint8_t* tiles;
    size_t tile_bytes;
    int num_tiles;
    int64_t cols;
    const uint8_t* const* rows; // of ActBlocks, or of floats
    int num_rows;
    float* sums;    // [num_tiles][num_rows][16]: the results
    uint8_t* panel; // kPanelBytes

    const uint8_t* tile(int t) const { return tiles + static_cast<size_t>(t) * tile_bytes; }
    float* tile_sums(int t) const { return sums + int64_t{t} * num_rows * kTileRows; }
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

// Columns that a panel holds (it shares the L1 cache with the activations of a few rows), and its size: for each block scales and
// minima of both halves, and the weights (signed ones in two parts).
inline constexpr int64_t kPanelCols = 512;
inline constexpr int64_t kPanelBytes = kPanelCols / kBlockCols * (4 * 64 + 64 + 2 * 512);

} // namespace tuili::TUILI_ISA
