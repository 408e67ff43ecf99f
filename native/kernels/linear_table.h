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

    static size_t activation_bytes(int64_t rows, int64_t cols) { return static_cast<size_t>(rows * ActLayout(cols).stride); }

    static void quantise(const float* x, int64_t ldx, int64_t, int64_t cols, int64_t row0, int64_t row1, uint8_t* acts) {
        const ActLayout layout(cols);
        for (int64_t row = row0; row < row1; row++)
            quantise_row(x + row * ldx, cols, layout, acts + row * layout.stride, nullptr);
    }

    static void quantise_fine(const float* x, int64_t ldx, int64_t rows, int64_t cols, int64_t row0, int64_t row1,
                              uint8_t* acts) {
        const ActLayout layout(cols);
        for (int64_t row = row0; row < row1; row++)
            quantise_row(x + row * ldx, cols, layout, acts + row * layout.stride, acts + (rows + row) * layout.stride);
    }

    // One row's record, and another of what the rounding left where `rest` is given.
    static void quantise_row(const float* x, int64_t cols, const ActLayout& layout, uint8_t* record, uint8_t* rest) {
        const int64_t blocks = cols / kBlockCols;
        int32_t largest = 0;
        for (int64_t b = 0; b < blocks; b++) {
            const int32_t magnitude = max_magnitude(x + b * kBlockCols);
            if (magnitude > largest) largest = magnitude;
        }
        if (largest >= 0x7f800000) {
            fill_with_nan(blocks, layout, record);
            if (rest) fill_with_nan(blocks, layout, rest);
            return;
        }
        for (int64_t b = 0; b < blocks; b++) {
            const float scale = write_block(x + b * kBlockCols, b, layout, record);
            if (!rest) continue;
            alignas(64) float left[kBlockCols];
            const auto* q = reinterpret_cast<const int8_t*>(record) + b * kBlockCols;
            for (int i = 0; i < kBlockCols; i++) left[i] = x[b * kBlockCols + i] - scale * static_cast<float>(q[i]);
            write_block(left, b, layout, rest);
        }
    }

    static void fill_with_nan(int64_t blocks, const ActLayout& layout, uint8_t* record) {
        std::memset(record, 0, static_cast<size_t>(layout.end));
        auto* scales = reinterpret_cast<float*>(record + layout.scales);
        auto* sums = reinterpret_cast<float*>(record + layout.sums);
        for (int64_t b = 0; b < blocks; b++) scales[b] = sums[b] = std::numeric_limits<float>::quiet_NaN();
    }

    // Block b of a record, from finite numbers; returns its scale.
    static float write_block(const float* x, int64_t b, const ActLayout& layout, uint8_t* record) {
        const float max = std::bit_cast<float>(max_magnitude(x));
        const float scale = max >= kSmallestMax ? max / 127.0f : 0.0f;
        int32_t halves[2];
        quantise_block(x, max >= kSmallestMax ? 127.0f / max : 0.0f, record + b * kBlockCols, halves);
        const int32_t sum = halves[0] + halves[1];
        reinterpret_cast<float*>(record + layout.scales)[b] = scale;
        reinterpret_cast<int32_t*>(record + layout.offsets32)[b] = -16 * sum;
        reinterpret_cast<float*>(record + layout.sums)[b] = static_cast<float>(sum) * scale;
        reinterpret_cast<int32_t*>(record + layout.offsets16)[2 * b] = -32 * halves[0];
        reinterpret_cast<int32_t*>(record + layout.offsets16)[2 * b + 1] = -32 * halves[1];
        return scale;
    }

    // Scratch of one thread: a panel, then the sums of one matrix, then of another.
    static constexpr size_t kSumBytes = kMaxRows * kTileRows * sizeof(float);
    static size_t scratch_bytes(int64_t) { return static_cast<size_t>(kPanelBytes) + 2 * kSumBytes; }

    // The rows [first, first + count) of a call; behind them, where activations are fine, what rounding left of each.
    struct Rows {
        const uint8_t* pointers[kMaxRows];
        bool fine;
        int count;

        Rows(const LinearArgs& a, bool acts, int64_t first) : fine(acts && a.fine) {
            const int64_t most = fine ? kMaxRows / 2 : kMaxRows;
            count = static_cast<int>(a.num_rows - first < most ? a.num_rows - first : most);
            const int64_t stride = acts ? ActLayout(a.weight->cols).stride : a.ldx * static_cast<int64_t>(sizeof(float));
            const uint8_t* base = acts ? a.acts : reinterpret_cast<const uint8_t*>(a.x);
            for (int i = 0; i < count; i++) {
                pointers[i] = base + (a.row_index ? a.row_index[first + i] : first + i) * stride;
                if (fine) pointers[count + i] = pointers[i] + a.x_rows * stride;
            }
        }
        int num_pointers() const { return fine ? 2 * count : count; }
    };

    static void multiply(const PackedMatrix& w, const FormatKernels& k, const float* bias, int64_t tile, const Rows& rows,
                         float* sums, uint8_t* panel) {
        k.product({w.data + static_cast<size_t>(tile) * w.tile_bytes, w.cols, rows.pointers, rows.num_pointers(), sums, panel});
        if (rows.fine)
            for (int i = 0; i < rows.count; i++)
                store(sums + i * kTileRows, load(sums + i * kTileRows) + load(sums + (rows.count + i) * kTileRows));
        if (!bias) return;
        alignas(64) float b[kTileRows] = {};
        const int64_t width = tile_width(w, tile);
        for (int64_t n = 0; n < width; n++) b[n] = bias[tile * kTileRows + n];
        for (int i = 0; i < rows.count; i++) store(sums + i * kTileRows, load(sums + i * kTileRows) + load(b));
    }

    static int64_t tile_width(const PackedMatrix& w, int64_t tile) {
        const int64_t rest = w.rows - tile * kTileRows;
        return rest < kTileRows ? rest : kTileRows;
    }

    static float* out_row(const LinearArgs& a, int64_t i, int64_t tile) {
        return a.out + (a.out_index ? a.out_index[i] : i) * a.ldo + tile * kTileRows;
    }

    static void write(float* out, const Vec16& v, int64_t width) {
        if (width == kTileRows) return store(out, v);
        alignas(64) float lanes[kTileRows];
        store(lanes, v);
        for (int64_t n = 0; n < width; n++) out[n] = lanes[n];
    }

    static void linear(const LinearArgs& a) {
        const FormatKernels& k = *find_kernels(a.weight->format);
        auto* sums = reinterpret_cast<float*>(a.scratch + kPanelBytes);
        for (int64_t first = 0, count = 0; first < a.num_rows; first += count) {
            const Rows rows(a, k.reads_acts, first);
            count = rows.count;
            for (int64_t t = a.tile0; t < a.tile1; t++) {
                multiply(*a.weight, k, a.bias, t, rows, sums, a.scratch);
                const int64_t width = tile_width(*a.weight, t);
                for (int i = 0; i < rows.count; i++) write(out_row(a, first + i, t), load(sums + i * kTileRows), width);
            }
        }
    }

    template <Act act>
    static void gate_up(const LinearArgs& a, const PackedMatrix& up, const float* up_bias) {
        const FormatKernels &kg = *find_kernels(a.weight->format), &ku = *find_kernels(up.format);
        auto* gates = reinterpret_cast<float*>(a.scratch + kPanelBytes);
        float* ups = gates + kMaxRows * kTileRows;
        for (int64_t first = 0; first < a.num_rows; first += kMaxRows) { // a.fine is false here
            const Rows gate_rows(a, kg.reads_acts, first), up_rows(a, ku.reads_acts, first);
            for (int64_t t = a.tile0; t < a.tile1; t++) {
                multiply(*a.weight, kg, a.bias, t, gate_rows, gates, a.scratch);
                multiply(up, ku, up_bias, t, up_rows, ups, a.scratch);
                const int64_t width = tile_width(up, t);
                for (int i = 0; i < gate_rows.count; i++)
                    write(out_row(a, first + i, t), activate<act>(load(gates + i * kTileRows)) * load(ups + i * kTileRows),
                          width);
            }
        }
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
        return {isa,      supports,      reads_acts,    tile_bytes, pack,       unpack_row, activation_bytes,
                quantise, quantise_fine, scratch_bytes, linear,     gate_up_act};
    }
};

} // namespace tuili::TUILI_ISA
