// The one integer matrix product: weights as bytes, activations as signed bytes, for every format with scale blocks.
//
// For one output the operations are the same whatever the number of rows, the path and the ISA level:
//   per scale block (32 columns, or 16):  x = float(exact integer sum) * activation scale;  c = fma(x, weight scale, c)
//   with minima, then:                    c = fma(float(sum of activations) * activation scale, min, c)
// Two paths: `direct` decodes a tile in registers for a few rows; `panel` first expands part of a tile to bytes and float scales.
// Include after one level's bytes.h and the format's header.
#pragma once
#include "kernels/linear_format.h"

namespace tuili::TUILI_ISA {

template <class F>
struct IntegerProduct {
    static constexpr int kHalves = 8 / F::kSteps; // scale blocks in a block of 32
    using BlockDot = Dot<F::kRange, F::kSteps, F::kOffset>;

    // Pointers into the activation records, advanced by blocks.
    struct Acts {
        const ActLayout layout;
        explicit Acts(int64_t cols) : layout(cols) {}
        static TUILI_INLINE const int32_t* at(const uint8_t* row, int64_t offset, int64_t index) {
            return reinterpret_cast<const int32_t*>(row + offset) + index;
        }
        TUILI_INLINE float scale(const uint8_t* row, int64_t b) const {
            return reinterpret_cast<const float*>(row + layout.scales)[b];
        }
        TUILI_INLINE const int32_t* offset(const uint8_t* row, int64_t b, int half) const {
            return kHalves == 1 ? at(row, layout.offsets32, b) : at(row, layout.offsets16, b * 2 + half);
        }
        TUILI_INLINE Vec16 sum(const uint8_t* row, int64_t b, int half) const {
            if constexpr (kHalves == 2) return set1(static_cast<float>(*offset(row, b, half)) * scale(row, b));
            return set1(reinterpret_cast<const float*>(row + layout.sums)[b]);
        }
    };

    template <int M>
    static __attribute__((noinline)) void direct(const Product& p, int first) {
        const Acts acts(p.cols);
        typename F::Reader reader(p.tile, p.cols);
        const uint8_t* rows[M];
        Vec16 c[M];
        TUILI_UNROLL for (int m = 0; m < M; m++) {
            rows[m] = p.rows[first + m];
            c[m] = zero();
        }
        const int64_t blocks = p.cols / kBlockCols;
        for (int64_t b = 0; b < blocks; b++) {
            reader.block(b);
            prefetch_stream<M, F::kBlockLines>(reader.body);
            TUILI_UNROLL for (int half = 0; half < kHalves; half++) {
                const int64_t column = b * kBlockCols + half * 16;
                BlockDot dots[M];
                TUILI_UNROLL for (int m = 0; m < M; m++) dots[m].start(acts.offset(rows[m], b, half));
                TUILI_UNROLL for (int v = 0; v < F::kSteps / 2; v++) {
                    Bytes low, high;
                    reader.decode(half, v, low, high);
                    TUILI_UNROLL for (int m = 0; m < M; m++) {
                        dots[m].add(low, rows[m] + column + v * 4, v * 2);
                        dots[m].add(high, rows[m] + column + (v + F::kSteps / 2) * 4, v * 2 + 1);
                    }
                }
                const Vec16 scale = reader.scale(half);
                TUILI_UNROLL for (int m = 0; m < M; m++) c[m] =
                    fma(dots[m].result(acts.offset(rows[m], b, half), acts.scale(rows[m], b)), scale, c[m]);
                if constexpr (F::kHasMin) {
                    const Vec16 min = reader.min(half);
                    TUILI_UNROLL for (int m = 0; m < M; m++) c[m] = fma(acts.sum(rows[m], b, half), min, c[m]);
                }
            }
        }
        TUILI_UNROLL for (int m = 0; m < M; m++) store(p.sums + (first + m) * kTileRows, c[m]);
    }

    // A panel's block: scales of its halves, minima of its halves, then 8 steps of 64 bytes.
    static constexpr int64_t kStepsAt = kHalves * (F::kHasMin ? 2 : 1) * 64;
    static constexpr int64_t kPanelBlock = kStepsAt + 8 * 64;

    static void expand(typename F::Reader& reader, int64_t first_block, int64_t last_block, uint8_t* panel) {
        for (int64_t b = first_block; b < last_block; b++, panel += kPanelBlock) {
            reader.block(b);
            TUILI_UNROLL for (int half = 0; half < kHalves; half++) {
                auto* head = reinterpret_cast<float*>(panel);
                store(head + half * 16, reader.scale(half));
                if constexpr (F::kHasMin) store(head + (kHalves + half) * 16, reader.min(half));
                uint8_t* steps = panel + kStepsAt + half * F::kSteps * 64;
                TUILI_UNROLL for (int v = 0; v < F::kSteps / 2; v++) {
                    Bytes low, high;
                    reader.decode(half, v, low, high);
                    store_bytes(steps + v * 64, low);
                    store_bytes(steps + (v + F::kSteps / 2) * 64, high);
                }
            }
        }
    }

    // M rows times the panel of blocks [first_block, last_block); the running sums stay in p.sums.
    template <int M>
    static __attribute__((noinline)) void panel_rows(const Product& p, int first, int64_t first_block, int64_t last_block) {
        const Acts acts(p.cols);
        const uint8_t* rows[M];
        TUILI_UNROLL for (int m = 0; m < M; m++) rows[m] = p.rows[first + m];
        float* const sums = p.sums + first * kTileRows;
        const uint8_t* panel = p.panel;
        for (int64_t b = first_block; b < last_block; b++, panel += kPanelBlock) {
            TUILI_UNROLL for (int half = 0; half < kHalves; half++) {
                const int64_t column = b * kBlockCols + half * 16;
                const uint8_t* steps = panel + kStepsAt + half * F::kSteps * 64;
                BlockDot dots[M];
                TUILI_UNROLL for (int m = 0; m < M; m++) dots[m].start(acts.offset(rows[m], b, half));
                TUILI_UNROLL for (int s = 0; s < F::kSteps; s += BlockDot::kGroup) {
                    Bytes w[BlockDot::kGroup];
                    TUILI_UNROLL for (int i = 0; i < BlockDot::kGroup; i++) w[i] = load_bytes(steps + (s + i) * 64);
                    TUILI_UNROLL for (int m = 0; m < M; m++) TUILI_UNROLL for (int i = 0; i < BlockDot::kGroup; i++) dots[m].add(
                        w[i], rows[m] + column + (s + i) * 4, s + i);
                }
                const auto* head = reinterpret_cast<const float*>(panel);
                const Vec16 scale = load(head + half * 16);
                TUILI_UNROLL for (int m = 0; m < M; m++) {
                    const Vec16 x = dots[m].result(acts.offset(rows[m], b, half), acts.scale(rows[m], b));
                    Vec16 c = fma(x, scale, load(sums + m * kTileRows));
                    if constexpr (F::kHasMin) c = fma(acts.sum(rows[m], b, half), load(head + (kHalves + half) * 16), c);
                    store(sums + m * kTileRows, c);
                }
            }
        }
    }

    template <int M>
    static void panel_rows_of(int rows, const Product& p, int first, int64_t first_block, int64_t last_block) {
        if constexpr (M > 1)
            if (rows < M) return panel_rows_of<M - 1>(rows, p, first, first_block, last_block);
        panel_rows<M>(p, first, first_block, last_block);
    }
    template <int M>
    static void direct_of(int rows, const Product& p, int first) {
        if constexpr (M > 1)
            if (rows < M) return direct_of<M - 1>(rows, p, first);
        direct<M>(p, first);
    }

    static void panel(const Product& p) {
        for (int m = 0; m < p.num_rows; m++) store(p.sums + m * kTileRows, zero());
        typename F::Reader reader(p.tile, p.cols);
        const int64_t blocks = p.cols / kBlockCols, step = kPanelCols / kBlockCols;
        const int groups = (p.num_rows + BlockDot::kRows - 1) / BlockDot::kRows;
        for (int64_t b = 0; b < blocks; b += step) {
            const int64_t end = b + step < blocks ? b + step : blocks;
            expand(reader, b, end, p.panel);
            for (int i = 0; i < groups; i++) {
                const int from = p.num_rows * i / groups, to = p.num_rows * (i + 1) / groups;
                panel_rows_of<BlockDot::kRows>(to - from, p, from, b, end);
            }
        }
    }

    static void run(const Product& p) {
        if (p.num_rows > kDirectRows) return panel(p);
        const int groups = (p.num_rows + kDirectStep - 1) / kDirectStep;
        for (int i = 0; i < groups; i++) {
            const int from = p.num_rows * i / groups, to = p.num_rows * (i + 1) / groups;
            direct_of<kDirectStep>(to - from, p, from);
        }
    }
};

template <class F>
inline constexpr FormatKernels kIntegerKernels = {true,        F::kFileCols,  F::kFileBytes,         F::tile_bytes,
                                                  F::pack_row, F::unpack_row, IntegerProduct<F>::run};

} // namespace tuili::TUILI_ISA
