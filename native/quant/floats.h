// F32, F16 and BF16 weights: packed as [cols][16 rows] of their own type. Include after one level's bytes.h.
#pragma once
#include "quant/levels.h"

namespace tuili::TUILI_ISA {

template <Format kName>
struct Floats {
    static constexpr Format kFormat = kName;
    static constexpr int kFileCols = 1, kFileBytes = kName == Format::F32 ? 4 : 2;

    static size_t tile_bytes(int64_t cols) { return static_cast<size_t>((cols * 16 * kFileBytes + 63) / 64 * 64); }

    static void pack_row(const uint8_t* src, int64_t cols, int r, uint8_t* tile) {
        for (int64_t k = 0; k < cols; k++) std::memcpy(tile + (k * 16 + r) * kFileBytes, src + k * kFileBytes, kFileBytes);
    }

    static void unpack_row(const uint8_t* tile, int r, int64_t cols, float* out) {
        for (int64_t k = 0; k < cols; k++) {
            const uint8_t* p = tile + (k * 16 + r) * kFileBytes;
            if constexpr (kName == Format::F32) out[k] = std::bit_cast<float>(load32(p));
            if constexpr (kName == Format::F16) out[k] = load_half(p);
            if constexpr (kName == Format::BF16) out[k] = std::bit_cast<float>(static_cast<uint32_t>(load16(p)) << 16);
        }
    }

    // Column k of the 16 rows.
    static TUILI_INLINE Vec16 column(const uint8_t* tile, int64_t k) {
        if constexpr (kName == Format::F32) return load(reinterpret_cast<const float*>(tile) + k * 16);
        const auto* p = reinterpret_cast<const uint16_t*>(tile) + k * 16;
        if constexpr (kName == Format::F16) return load_f16(p);
        return floats_of_bf16(p);
    }
};
using F32 = Floats<Format::F32>;
using F16 = Floats<Format::F16>;
using BF16 = Floats<Format::BF16>;

} // namespace tuili::TUILI_ISA
