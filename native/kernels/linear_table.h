// The functions of the LinearKernels table, written once: they find a format's kernels and walk tiles and rows.
// Include after one level's bytes.h.
#pragma once
#include "kernels/activation.h"
#include "kernels/linear_format.h"
#include <bit>
#include <cstring>
#include <limits>

namespace tuili::TUILI_ISA {

inline const FormatKernels* find_kernels(Format format) {
    if (const auto* k = block32_kernels(format)) return k;
    if (const auto* k = k_quant_kernels(format)) return k;
    return float_kernels(format);
}

struct LinearTable {
    static bool supports(Format format, int64_t cols) {
        const FormatKernels* k = find_kernels(format);
        return k != nullptr && cols > 0 && cols % k->file_cols == 0;
    }
    static bool reads_acts(Format format) { return find_kernels(format)->reads_acts; }
    static size_t tile_bytes(Format format, int64_t cols) { return find_kernels(format)->tile_bytes(cols); }

    static void pack(Format format, const uint8_t* src, size_t row_bytes, const int32_t* row_order, int64_t rows, int64_t cols,
                     int64_t tile0, int64_t tile1, uint8_t* dst) {
        const FormatKernels& k = *find_kernels(format);
        const size_t bytes = k.tile_bytes(cols);
        for (int64_t t = tile0; t < tile1; t++) {
            uint8_t* tile = dst + static_cast<size_t>(t) * bytes;
            std::memset(tile, 0, bytes);
            for (int r = 0; r < kTileRows && t * kTileRows + r < rows; r++) {
                const int64_t row = row_order ? row_order[t * kTileRows + r] : t * kTileRows + r;
                k.pack_row(src + static_cast<size_t>(row) * row_bytes, cols, r, tile);
            }
        }
    }

    static void unpack_row(const PackedMatrix& w, int64_t row, float* out) {
        const uint8_t* tile = w.data + static_cast<size_t>(row / kTileRows) * w.tile_bytes;
        find_kernels(w.format)->unpack_row(tile, static_cast<int>(row % kTileRows), w.cols, out);
    }

    // Packs and unpacks some columns at a time: one definition of a format's values, whichever way they are reached.
    static void decode_row(Format format, const uint8_t* src, int64_t cols, float* out) {
        constexpr int64_t kCols = 256; // whole blocks of every format
        alignas(64) uint8_t tile[static_cast<size_t>(kTileRows * kCols) * sizeof(float)];
        const FormatKernels& k = *find_kernels(format);
        for (int64_t c = 0; c < cols; c += kCols) {
            const int64_t count = cols - c < kCols ? cols - c : kCols;
            std::memset(tile, 0, k.tile_bytes(count));
            k.pack_row(src + static_cast<size_t>(c / k.file_cols * k.file_bytes), count, 0, tile);
            k.unpack_row(tile, 0, count, out + c);
        }
    }

    static size_t activation_bytes(int64_t rows, int64_t cols) {
        return static_cast<size_t>(rows * act_stride(cols)) * sizeof(ActBlock);
    }

    static void quantise(const float* x, int64_t ldx, int64_t, int64_t cols, int64_t row0, int64_t row1, uint8_t* acts) {
        auto* blocks = reinterpret_cast<ActBlock*>(acts);
        for (int64_t row = row0; row < row1; row++) quantise_row(x + row * ldx, cols, blocks + row * act_stride(cols), nullptr);
    }

    static void quantise_fine(const float* x, int64_t ldx, int64_t rows, int64_t cols, int64_t row0, int64_t row1,
                              uint8_t* acts) {
        auto* blocks = reinterpret_cast<ActBlock*>(acts);
        const int64_t stride = act_stride(cols);
        for (int64_t row = row0; row < row1; row++)
            quantise_row(x + row * ldx, cols, blocks + row * stride, blocks + (rows + row) * stride);
    }

    // One row's blocks, and others of what the rounding left where `rest` is given.
    static void quantise_row(const float* x, int64_t cols, ActBlock* row, ActBlock* rest) {
        const int64_t blocks = cols / kBlockCols;
        int32_t largest = 0;
        for (int64_t b = 0; b < blocks; b++) {
            const int32_t magnitude = max_magnitude(x + b * kBlockCols);
            if (magnitude > largest) largest = magnitude;
        }
        if (largest >= 0x7f800000) {
            fill_with_nan(blocks, row);
            if (rest) fill_with_nan(blocks, rest);
            return;
        }
        for (int64_t b = 0; b < blocks; b++) {
            write_block(x + b * kBlockCols, row[b]);
            if (!rest) continue;
            alignas(64) float left[kBlockCols];
            for (int i = 0; i < kBlockCols; i++) left[i] = x[b * kBlockCols + i] - row[b].scale * static_cast<float>(row[b].q[i]);
            write_block(left, rest[b]);
        }
    }

    static void fill_with_nan(int64_t blocks, ActBlock* row) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        for (int64_t b = 0; b < blocks; b++) row[b] = {{}, nan, nan, {nan, nan}, 0, {0, 0}};
    }

    // From finite numbers.
    static void write_block(const float* x, ActBlock& block) {
        const float max = std::bit_cast<float>(max_magnitude(x));
        PairSums halves[2];
        quantise_block(x, max >= kSmallestMax ? 127.0f / max : 0.0f, block.q, halves);
        const float scale = max >= kSmallestMax ? max / 127.0f : 0.0f;
        block.scale = scale;
        block.sum = static_cast<float>(halves[0].even + halves[0].odd + halves[1].even + halves[1].odd) * scale;
        block.offset = start_word(-16 * (halves[0].even + halves[1].even), -16 * (halves[0].odd + halves[1].odd));
        for (int i = 0; i < 2; i++) {
            block.half_sums[i] = static_cast<float>(halves[i].even + halves[i].odd) * scale;
            block.half_offsets[i] = start_word(-32 * halves[i].even, -32 * halves[i].odd);
        }
    }

    // Scratch of one thread: a panel, then the sums of one matrix, then of another.
    static constexpr size_t kSumFloats = kMaxTiles * kMaxRows * kTileRows;
    static size_t scratch_bytes(int64_t) { return static_cast<size_t>(kPanelBytes) + 2 * kSumFloats * sizeof(float); }

    // The rows [first, first + count) of a call; behind them, where activations are fine, what rounding left of each.
    struct Rows {
        const uint8_t* pointers[kMaxRows];
        bool fine;
        int count;

        Rows(const LinearArgs& a, bool acts, int64_t first) : fine(acts && a.fine) {
            const int64_t most = fine ? kMaxRows / 2 : kMaxRows;
            count = static_cast<int>(a.num_rows - first < most ? a.num_rows - first : most);
            const int64_t stride = acts ? act_stride(a.weight->cols) * static_cast<int64_t>(sizeof(ActBlock))
                                        : a.ldx * static_cast<int64_t>(sizeof(float));
            const uint8_t* base = acts ? a.acts : reinterpret_cast<const uint8_t*>(a.x);
            for (int i = 0; i < count; i++) {
                pointers[i] = base + (a.row_index ? a.row_index[first + i] : first + i) * stride;
                if (fine) pointers[count + i] = pointers[i] + a.x_rows * stride;
            }
        }
        int num_pointers() const { return fine ? 2 * count : count; }
    };

    // Tiles [tile0, tile0 + num_tiles) of one matrix times some rows: results in `sums`, [num_tiles][num_pointers][16].
    static void multiply(const PackedMatrix& w, const FormatKernels& k, const float* bias, int64_t tile0, int num_tiles,
                         const Rows& rows, float* sums, uint8_t* panel) {
        const Product product{w.data + static_cast<size_t>(tile0) * w.tile_bytes,
                              w.tile_bytes,
                              num_tiles,
                              w.cols,
                              rows.pointers,
                              rows.num_pointers(),
                              sums,
                              panel};
        k.product(product);
        if (rows.fine)
            for (int t = 0; t < num_tiles; t++) {
                float* s = product.tile_sums(t);
                for (int i = 0; i < rows.count * kTileRows; i += kTileRows)
                    store(s + i, load(s + i) + load(s + rows.count * kTileRows + i));
            }
        if (!bias) return;
        for (int t = 0; t < num_tiles; t++) {
            alignas(64) float b[kTileRows] = {};
            const int64_t width = tile_width(w, tile0 + t);
            for (int64_t n = 0; n < width; n++) b[n] = bias[(tile0 + t) * kTileRows + n];
            float* s = product.tile_sums(t);
            for (int i = 0; i < rows.count * kTileRows; i += kTileRows) store(s + i, load(s + i) + load(b));
        }
    }

    static int64_t tile_width(const PackedMatrix& w, int64_t tile) {
        const int64_t rest = w.rows - tile * kTileRows;
        return rest < kTileRows ? rest : kTileRows;
    }

    static void write(float* out, const Vec16& v, int64_t width) {
        if (width == kTileRows) return store(out, v);
        alignas(64) float lanes[kTileRows];
        store(lanes, v);
        for (int64_t n = 0; n < width; n++) out[n] = lanes[n];
    }

    // Writes value(offset into the sums) for every row and tile of a piece.
    template <class F>
    static void write_piece(const LinearArgs& a, int64_t first_row, int64_t tile0, int num_tiles, const Rows& rows, F value) {
        for (int i = 0; i < rows.count; i++) {
            float* out = a.out + (a.out_index ? a.out_index[first_row + i] : first_row + i) * a.ldo + tile0 * kTileRows;
            for (int t = 0; t < num_tiles; t++)
                write(out + t * kTileRows, value((int64_t{t} * rows.num_pointers() + i) * kTileRows),
                      tile_width(*a.weight, tile0 + t));
        }
    }

    // Calls body(first row, rows, first tile, number of tiles) for pieces that fit the scratch.
    template <class F>
    static void for_pieces(const LinearArgs& a, bool acts, F body) {
        for (int64_t first = 0, count = 0; first < a.num_rows; first += count) {
            const Rows rows(a, acts, first);
            count = rows.count;
            for (int64_t t = a.tile0; t < a.tile1; t += kMaxTiles)
                body(first, rows, t, static_cast<int>(a.tile1 - t < kMaxTiles ? a.tile1 - t : kMaxTiles));
        }
    }

    static void linear(const LinearArgs& a) {
        const FormatKernels& k = *find_kernels(a.weight->format);
        auto* sums = reinterpret_cast<float*>(a.scratch + kPanelBytes);
        for_pieces(a, k.reads_acts, [&](int64_t first, const Rows& rows, int64_t tile, int tiles) {
            multiply(*a.weight, k, a.bias, tile, tiles, rows, sums, a.scratch);
            write_piece(a, first, tile, tiles, rows, [&](int64_t at) { return load(sums + at); });
        });
    }

    template <Act act>
    static void gate_up(const LinearArgs& a, const PackedMatrix& up, const float* up_bias) {
        const FormatKernels &kg = *find_kernels(a.weight->format), &ku = *find_kernels(up.format);
        auto* gates = reinterpret_cast<float*>(a.scratch + kPanelBytes);
        float* ups = gates + kSumFloats;
        for_pieces(a, kg.reads_acts, [&](int64_t first, const Rows& rows, int64_t tile, int tiles) { // a.fine is false here
            multiply(*a.weight, kg, a.bias, tile, tiles, rows, gates, a.scratch);
            if (ku.reads_acts == kg.reads_acts)
                multiply(up, ku, up_bias, tile, tiles, rows, ups, a.scratch);
            else
                multiply(up, ku, up_bias, tile, tiles, Rows(a, ku.reads_acts, first), ups, a.scratch);
            write_piece(a, first, tile, tiles, rows,
                        [&](int64_t at) { return activate<act>(load(gates + at)) * load(ups + at); });
        });
    }
    static void gate_up_act(const LinearArgs& a, const PackedMatrix& up, const float* up_bias, Act act) {
        switch (act) {
        case Act::silu:
            return gate_up<Act::silu>(a, up, up_bias);
        case Act::gelu_tanh:
            return gate_up<Act::gelu_tanh>(a, up, up_bias);
        case Act::gelu:
            return gate_up<Act::gelu>(a, up, up_bias);
        }
    }

    static constexpr LinearKernels table(const char* isa) {
        return {isa,      supports,      reads_acts,    tile_bytes, pack,       unpack_row, decode_row, activation_bytes,
                quantise, quantise_fine, scratch_bytes, linear,     gate_up_act};
    }
};

} // namespace tuili::TUILI_ISA
