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

    static TUILI_INLINE const ActBlock* row(const Product& p, int m) { return reinterpret_cast<const ActBlock*>(p.rows[m]); }
    static TUILI_INLINE const int32_t* offset(const ActBlock& a, int half) {
        return kHalves == 1 ? &a.offset : a.half_offsets + half;
    }
    static TUILI_INLINE Vec16 sum(const ActBlock& a, int half) { return set1(kHalves == 1 ? a.sum : a.half_sums[half]); }
    // Activations of step `step` of a half.
    static TUILI_INLINE const int8_t* columns(const ActBlock& a, int half, int step) { return a.q + half * 16 + step * 4; }

    template <int M>
    static __attribute__((noinline)) void direct(const Product& p, int t, int first) {
        typename F::Reader reader(p.tile(t), p.cols);
        const ActBlock* rows[M];
        Vec16 c[M];
        TUILI_UNROLL for (int m = 0; m < M; m++) {
            rows[m] = row(p, first + m);
            c[m] = zero();
        }
        const int64_t blocks = p.cols / kBlockCols;
        for (int64_t b = 0; b < blocks; b++) {
            reader.block(b);
            prefetch_stream<M, F::kBlockLines>(reader.body);
            TUILI_UNROLL for (int half = 0; half < kHalves; half++) {
                BlockDot dots[M];
                TUILI_UNROLL for (int m = 0; m < M; m++) dots[m].start(offset(rows[m][b], half), nullptr);
                TUILI_UNROLL for (int v = 0; v < F::kSteps / 2; v++) {
                    Bytes low, high;
                    reader.decode(half, v, low, high);
                    TUILI_UNROLL for (int m = 0; m < M; m++) {
                        dots[m].add(low, columns(rows[m][b], half, v), v * 2);
                        dots[m].add(high, columns(rows[m][b], half, v + F::kSteps / 2), v * 2 + 1);
                    }
                }
                const Vec16 scale = reader.scale(half);
                TUILI_UNROLL for (int m = 0; m < M; m++) c[m] = fma(dots[m].result(rows[m][b].scale), scale, c[m]);
                if constexpr (F::kHasMin) {
                    const Vec16 min = reader.min(half);
                    TUILI_UNROLL for (int m = 0; m < M; m++) c[m] = fma(sum(rows[m][b], half), min, c[m]);
                }
            }
        }
        TUILI_UNROLL for (int m = 0; m < M; m++) store(p.tile_sums(t) + (first + m) * kTileRows, c[m]);
    }

    // A panel's block: scales of its halves, minima of its halves, then the weights of each half.
    static constexpr int64_t kStepsAt = kHalves * (F::kHasMin ? 2 : 1) * 64;
    static constexpr int64_t kPanelBlock = kStepsAt + kHalves * BlockDot::kExpandedBytes;
    static_assert(kPanelBlock * kPanelCols / kBlockCols <= kPanelBytes);

    static void expand(typename F::Reader& reader, int64_t first_block, int64_t last_block, uint8_t* panel) {
        for (int64_t b = first_block; b < last_block; b++, panel += kPanelBlock) {
            reader.block(b);
            TUILI_UNROLL for (int half = 0; half < kHalves; half++) {
                auto* head = reinterpret_cast<float*>(panel);
                store(head + half * 16, reader.scale(half));
                if constexpr (F::kHasMin) store(head + (kHalves + half) * 16, reader.min(half));
                Bytes w[F::kSteps];
                TUILI_UNROLL for (int v = 0; v < F::kSteps / 2; v++) reader.decode(half, v, w[v], w[v + F::kSteps / 2]);
                BlockDot::expand(w, panel + kStepsAt + half * BlockDot::kExpandedBytes);
            }
        }
    }

    // The weights of the panel after this one: while this one is multiplied they come nearer, a few cache lines a block.
    struct Ahead {
        const uint8_t *at, *end;
        int64_t lines_a_block;
        TUILI_INLINE void block() {
            for (int64_t i = 0; i < lines_a_block && at < end; i++, at += 64) prefetch_later(at);
        }
    };

    // M rows times the panel of blocks [first_block, last_block); the running sums stay in `sums`.
    template <int M>
    static __attribute__((noinline)) void panel_rows(const Product& p, float* sums, int first, int64_t first_block,
                                                     int64_t last_block, Ahead& ahead) {
        const ActBlock* rows[M];
        TUILI_UNROLL for (int m = 0; m < M; m++) rows[m] = row(p, first + m);
        sums += first * kTileRows;
        const uint8_t* panel = p.panel;
        for (int64_t b = first_block; b < last_block; b++, panel += kPanelBlock) {
            ahead.block();
            TUILI_UNROLL for (int half = 0; half < kHalves; half++) {
                const uint8_t* expanded = panel + kStepsAt + half * BlockDot::kExpandedBytes;
                BlockDot dots[M];
                TUILI_UNROLL for (int m = 0; m < M; m++) dots[m].start(offset(rows[m][b], half), expanded);
                TUILI_UNROLL for (int s = 0; s < F::kSteps; s++) {
                    const typename BlockDot::Step w = BlockDot::step(expanded, s);
                    TUILI_UNROLL for (int m = 0; m < M; m++) dots[m].add(w, columns(rows[m][b], half, s), s);
                }
                const auto* head = reinterpret_cast<const float*>(panel);
                const Vec16 scale = load(head + half * 16);
                TUILI_UNROLL for (int m = 0; m < M; m++) {
                    Vec16 c = fma(dots[m].result(rows[m][b].scale), scale, load(sums + m * kTileRows));
                    if constexpr (F::kHasMin) c = fma(sum(rows[m][b], half), load(head + (kHalves + half) * 16), c);
                    store(sums + m * kTileRows, c);
                }
            }
        }
    }

    template <int M>
    static void panel_rows_of(int rows, const Product& p, float* sums, int first, int64_t first_block, int64_t last_block,
                              Ahead& ahead) {
        if constexpr (M > 1)
            if (rows < M) return panel_rows_of<M - 1>(rows, p, sums, first, first_block, last_block, ahead);
        panel_rows<M>(p, sums, first, first_block, last_block, ahead);
    }
    template <int M>
    static void direct_of(int rows, const Product& p, int t, int first) {
        if constexpr (M > 1)
            if (rows < M) return direct_of<M - 1>(rows, p, t, first);
        direct<M>(p, t, first);
    }

    // Some columns of all tiles, then the next: the rows' activations of these columns are read once for all tiles.
    static void panel(const Product& p) {
        for (int64_t i = 0; i < int64_t{p.num_tiles} * p.num_rows; i++) store(p.sums + i * kTileRows, zero());
        const int64_t blocks = p.cols / kBlockCols, step = kPanelCols / kBlockCols;
        const int groups = (p.num_rows + BlockDot::kRows - 1) / BlockDot::kRows;
        for (int64_t b = 0; b < blocks; b += step) {
            const int64_t end = b + step < blocks ? b + step : blocks;
            for (int t = 0; t < p.num_tiles; t++) {
                typename F::Reader reader(p.tile(t), p.cols);
                expand(reader, b, end, p.panel);
                Ahead ahead = after(p, t, b, end, groups);
                for (int i = 0; i < groups; i++) {
                    const int from = p.num_rows * i / groups, to = p.num_rows * (i + 1) / groups;
                    panel_rows_of<BlockDot::kRows>(to - from, p, p.tile_sums(t), from, b, end, ahead);
                }
            }
        }
    }

    // What follows blocks [b, end) of tile t, spread over `groups` passes over them: the same of the next tile, the next columns
    // of the first, or what a following call may begin with.
    static Ahead after(const Product& p, int t, int64_t b, int64_t end, int groups) {
        const auto blocks = p.cols / kBlockCols, bytes = static_cast<int64_t>(p.tile_bytes) * (end - b) / blocks;
        const bool same_columns = t + 1 < p.num_tiles, last = !same_columns && end == blocks;
        const uint8_t* tile = p.tile(same_columns ? t + 1 : last ? p.num_tiles : 0);
        const uint8_t* at = tile + static_cast<int64_t>(p.tile_bytes) * (same_columns ? b : last ? 0 : end) / blocks;
        const int64_t passes = groups * (end - b) * 64;
        return {at, at + bytes, (bytes + passes - 1) / passes};
    }

    static void run(const Product& p) {
        if (p.num_rows > BlockDot::kDirectRows) return panel(p);
        const int groups = (p.num_rows + kDirectStep - 1) / kDirectStep;
        for (int t = 0; t < p.num_tiles; t++)
            for (int i = 0; i < groups; i++) {
                const int from = p.num_rows * i / groups, to = p.num_rows * (i + 1) / groups;
                direct_of<kDirectStep>(to - from, p, t, from);
            }
    }
};

template <class F>
inline constexpr FormatKernels kIntegerKernels = {true,        F::kFileCols,  F::kFileBytes,         F::tile_bytes,
                                                  F::pack_row, F::unpack_row, IntegerProduct<F>::run};

} // namespace tuili::TUILI_ISA
