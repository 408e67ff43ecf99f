// The linear kernels of one ISA level: packing, activation quantisation, matrix products. One table a level.
//
// Weights are packed in tiles of 16 output rows, a row being one int32 lane: the result of an output is a strictly sequential
// function of K, the same whether one row or five hundred are computed, on whichever path, thread or ISA level.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tuili {

// Values are the type numbers of GGUF files.
enum class Format : int32_t {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ4_NL = 20,
    IQ4_XS = 23,
    BF16 = 30,
    MXFP4 = 39,
};

enum class Act : int32_t { silu = 0, gelu_tanh = 1, gelu = 2 };

inline constexpr int64_t kTileRows = 16;

// A packed matrix [rows, cols]; the last tile is padded with zero rows. The layout is private to the level that packed it.
struct PackedMatrix {
    Format format;
    int64_t rows, cols;
    size_t tile_bytes;
    const uint8_t* data;

    int64_t num_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
    size_t bytes() const { return tile_bytes * static_cast<size_t>(num_tiles()); }
};

// out[out_index ? out_index[i] : i][n] = bias[n] + sum_k w[n][k] * x[row_index ? row_index[i] : i][k]
// for i in [0, num_rows), n in the rows of tiles [tile0, tile1).
struct LinearArgs {
    const PackedMatrix* weight;
    const float* bias; // [rows of weight] or null
    const float* x;    // float activations [x_rows, ldx]: used by the float formats
    int64_t ldx;
    const uint8_t* acts;      // quantised activations of the same x_rows rows: used by the integer formats
    int64_t x_rows;           // rows that `acts` was laid out for
    bool fine;                // `acts` was written by quantise_fine
    const int32_t* row_index; // null, or [num_rows]
    const int32_t* out_index; // null, or [num_rows]
    int64_t num_rows;
    int64_t tile0, tile1;
    float* out;
    int64_t ldo;
    uint8_t* scratch; // scratch_bytes(), 64-byte aligned, one a thread
};

struct LinearKernels {
    const char* isa;
    // Whether this level computes with weights of that format and that many columns.
    bool (*supports)(Format format, int64_t cols);
    // Whether the format reads `acts` (quantised) or `x` (float).
    bool (*reads_acts)(Format format);
    size_t (*tile_bytes)(Format format, int64_t cols);
    // Packs tiles [tile0, tile1) from GGUF rows; row r of the matrix is at src + row(r) * row_bytes, row(r) = row_order ?
    // row_order[r] : r.
    void (*pack)(Format format, const uint8_t* src, size_t row_bytes, const int32_t* row_order, int64_t rows, int64_t cols,
                 int64_t tile0, int64_t tile1, uint8_t* dst);
    // Exact decode of one row (embedding look-up), bit for bit what the format's definition gives.
    void (*unpack_row)(const PackedMatrix& weight, int64_t row, float* out);
    // The same from a row as it lies in a GGUF file.
    void (*decode_row)(Format format, const uint8_t* src, int64_t cols, float* out);
    size_t (*activation_bytes)(int64_t rows, int64_t cols);
    // Quantises rows [row0, row1) of x into a buffer laid out for `rows` rows.
    void (*quantise)(const float* x, int64_t ldx, int64_t rows, int64_t cols, int64_t row0, int64_t row1, uint8_t* acts);
    // The same with twice the rows: row r, and as row rows + r what the rounding left of it. A product over both has about 15
    // bits of the activation instead of 8; it reads the weights once and multiplies twice.
    void (*quantise_fine)(const float* x, int64_t ldx, int64_t rows, int64_t cols, int64_t row0, int64_t row1, uint8_t* acts);
    size_t (*scratch_bytes)(int64_t max_cols);
    void (*linear)(const LinearArgs& args);
    // act(gate) * up for tiles [tile0, tile1) of both matrices (equal shapes); args.weight and bias are the gate's. Same bits as
    // linear, linear, act_mul.
    void (*gate_up_act)(const LinearArgs& args, const PackedMatrix& up, const float* up_bias, Act act);
};

const LinearKernels& linear_generic();
const LinearKernels& linear_avx2();
const LinearKernels& linear_avx512();

} // namespace tuili
