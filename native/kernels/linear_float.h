// The matrix product of float weights: c = fma(x[k], w[k], c) in the order of the columns.
// Include after one level's bytes.h.
#pragma once
#include "kernels/linear_format.h"
#include "quant/floats.h"

namespace tuili::TUILI_ISA {

template <class F>
struct FloatProduct {
    template <int M>
    static __attribute__((noinline)) void rows(const Product& p, int t, int first) {
        const float* x[M];
        Vec16 c[M];
        TUILI_UNROLL for (int m = 0; m < M; m++) {
            x[m] = reinterpret_cast<const float*>(p.rows[first + m]);
            c[m] = zero();
        }
        const uint8_t* tile = p.tile(t);
        for (int64_t k = 0; k < p.cols; k++) {
            const Vec16 w = F::column(tile, k);
            TUILI_UNROLL for (int m = 0; m < M; m++) c[m] = fma(set1(x[m][k]), w, c[m]);
        }
        TUILI_UNROLL for (int m = 0; m < M; m++) store(p.tile_sums(t) + (first + m) * kTileRows, c[m]);
    }

    template <int M>
    static void rows_of(int count, const Product& p, int t, int first) {
        if constexpr (M > 1)
            if (count < M) return rows_of<M - 1>(count, p, t, first);
        rows<M>(p, t, first);
    }

    static void run(const Product& p) {
        const int groups = (p.num_rows + kTileRowsMax - 1) / kTileRowsMax;
        for (int t = 0; t < p.num_tiles; t++)
            for (int i = 0; i < groups; i++) {
                const int from = p.num_rows * i / groups, to = p.num_rows * (i + 1) / groups;
                rows_of<kTileRowsMax>(to - from, p, t, from);
            }
    }
};

template <class F>
inline constexpr FormatKernels kFloatKernels = {false,       F::kFileCols,  F::kFileBytes,       F::tile_bytes,
                                                F::pack_row, F::unpack_row, FloatProduct<F>::run};

inline const FormatKernels* find_float(Format format) {
    switch (format) {
    case Format::F32:
        return &kFloatKernels<F32>;
    case Format::F16:
        return &kFloatKernels<F16>;
    case Format::BF16:
        return &kFloatKernels<BF16>;
    default:
        return nullptr;
    }
}

} // namespace tuili::TUILI_ISA
