// The formats with a scale (and perhaps a minimum) for every 32 columns: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
//
// Packed, two blocks of 16 rows make a unit (the last unit of a row may hold one):
//   [64]       scales, f16 (MXFP4: bf16): first block x 16 rows, second block x 16 rows
//   [64]       minima likewise, where there are any
//   per block: [64] fifth bits, where there are any; then 4 vectors of nibbles or 8 of bytes
#pragma once
#include "quant/levels.h"

namespace tuili::TUILI_ISA {

enum class Scale { f16, bf16 };

template <int kBits, bool kHasMin>
struct Block32 {
    static constexpr int64_t kHead = kHasMin ? 128 : 64;
    static constexpr int64_t kFifth = kBits == 5 ? 64 : 0;
    static constexpr int64_t kBody = kFifth + (kBits == 8 ? 512 : 256);
    static constexpr int64_t kUnit = kHead + 2 * kBody;

    static size_t tile_bytes(int64_t cols) {
        const int64_t blocks = cols / 32;
        return static_cast<size_t>(blocks / 2 * kUnit + blocks % 2 * (kHead + kBody));
    }
    static int64_t scale_at(int64_t block) { return block / 2 * kUnit + block % 2 * 32; }
    static int64_t min_at(int64_t block) { return scale_at(block) + 64; }
    static int64_t body_at(int64_t block) { return block / 2 * kUnit + kHead + block % 2 * kBody; }
};

// What the seven formats share. `File` says how a block lies in the file:
//   kFormat, kBits, kRange, kOffset, kHasMin, kScale, kFileBytes, kTable (null, or the signed values of the levels, to which
//   kTableOffset is added); scale(block, row record), levels(block, q[32])
template <class File>
struct Block32Format : File {
    using Layout = Block32<File::kBits, File::kHasMin>;
    static constexpr int kSteps = 8;
    static constexpr int kFileCols = 32, kBlockLines = Layout::kBody / 64;

    static size_t tile_bytes(int64_t cols) { return Layout::tile_bytes(cols); }

    static void pack_row(const uint8_t* src, int64_t cols, int r, uint8_t* tile) {
        for (int64_t b = 0; b < cols / 32; b++, src += File::kFileBytes) {
            uint8_t q[32];
            File::levels(src, q);
            const uint16_t scale = File::scale(src);
            std::memcpy(tile + Layout::scale_at(b) + r * 2, &scale, 2);
            if constexpr (File::kHasMin) std::memcpy(tile + Layout::min_at(b) + r * 2, src + 2, 2);
            uint8_t* body = tile + Layout::body_at(b);
            if constexpr (File::kBits == 8) {
                for (int s = 0; s < 8; s++) std::memcpy(body + s * 64 + r * 4, q + s * 4, 4);
            } else {
                if constexpr (File::kBits == 5) put_fifth_bits(body, r, q);
                put_nibbles(body + Layout::kFifth, r, q);
            }
        }
    }

    static void unpack_row(const uint8_t* tile, int r, int64_t cols, float* out) {
        for (int64_t b = 0; b < cols / 32; b++, out += 32) {
            uint8_t q[32];
            const uint8_t* body = tile + Layout::body_at(b);
            if constexpr (File::kBits == 8) {
                for (int s = 0; s < 8; s++) std::memcpy(q + s * 4, body + s * 64 + r * 4, 4);
            } else {
                get_nibbles(body + Layout::kFifth, r, q);
                if constexpr (File::kBits == 5) get_fifth_bits(body, r, q);
            }
            const uint16_t stored = load16(tile + Layout::scale_at(b) + r * 2);
            const float d =
                File::kScale == Scale::f16 ? half_to_float(stored) : std::bit_cast<float>(static_cast<uint32_t>(stored) << 16);
            const float m = File::kHasMin ? load_half(tile + Layout::min_at(b) + r * 2) : 0.0f;
            for (int k = 0; k < 32; k++) {
                const float x = d * static_cast<float>(value(q[k]));
                out[k] = File::kHasMin ? x + m : x;
            }
        }
    }

    static int value(uint8_t level) {
        if constexpr (File::kTable != nullptr) return File::kTable[level] - File::kOffset;
        if constexpr (File::kRange == 128) return static_cast<int8_t>(level);
        return level - File::kOffset;
    }

    // Decodes a tile block by block.
    struct Reader {
        const uint8_t *tile, *head = nullptr, *body = nullptr;
        TUILI_INLINE Reader(const uint8_t* tile_, int64_t) : tile(tile_) {}
        TUILI_INLINE void block(int64_t b) {
            head = tile + Layout::scale_at(b);
            body = tile + Layout::body_at(b);
        }
        TUILI_INLINE Vec16 scale(int) const {
            const auto* p = reinterpret_cast<const uint16_t*>(head);
            return File::kScale == Scale::f16 ? load_f16(p) : floats_of_bf16(p);
        }
        TUILI_INLINE Vec16 min(int) const { return load_f16(reinterpret_cast<const uint16_t*>(head + 64)); }
        // Steps v and v + 4 of the block (columns v*4.. and 16+v*4..).
        TUILI_INLINE void decode(int, int v, Bytes& low, Bytes& high) const {
            if constexpr (File::kBits == 8) {
                low = load_bytes(body + v * 64);
                high = load_bytes(body + v * 64 + 256);
            } else if constexpr (File::kBits == 5) {
                decode_five_bits(body + 64, body, v, low, high);
            } else {
                decode_nibbles(body + v * 64, low, high);
            }
            if constexpr (File::kTable != nullptr) {
                low = look_up(File::kTable, low);
                high = look_up(File::kTable, high);
            }
        }
    };
};

struct HalfScale {
    static constexpr Scale kScale = Scale::f16;
    static constexpr const int8_t* kTable = nullptr;
    static uint16_t scale(const uint8_t* block) { return load16(block); }
};

struct FileQ4_0 : HalfScale {
    static constexpr Format kFormat = Format::Q4_0;
    static constexpr int kBits = 4, kRange = 15, kOffset = 8, kFileBytes = 18;
    static constexpr bool kHasMin = false;
    static void levels(const uint8_t* block, uint8_t* q) { read_nibbles(block + 2, 16, q); }
};
struct FileQ4_1 : HalfScale {
    static constexpr Format kFormat = Format::Q4_1;
    static constexpr int kBits = 4, kRange = 15, kOffset = 0, kFileBytes = 20;
    static constexpr bool kHasMin = true;
    static void levels(const uint8_t* block, uint8_t* q) { read_nibbles(block + 4, 16, q); }
};
struct FileQ5_0 : HalfScale {
    static constexpr Format kFormat = Format::Q5_0;
    static constexpr int kBits = 5, kRange = 31, kOffset = 16, kFileBytes = 22;
    static constexpr bool kHasMin = false;
    static void levels(const uint8_t* block, uint8_t* q) {
        read_nibbles(block + 6, 16, q);
        read_fifth_bits(block + 2, q);
    }
};
struct FileQ5_1 : HalfScale {
    static constexpr Format kFormat = Format::Q5_1;
    static constexpr int kBits = 5, kRange = 31, kOffset = 0, kFileBytes = 24;
    static constexpr bool kHasMin = true;
    static void levels(const uint8_t* block, uint8_t* q) {
        read_nibbles(block + 8, 16, q);
        read_fifth_bits(block + 4, q);
    }
};
struct FileQ8_0 : HalfScale {
    static constexpr Format kFormat = Format::Q8_0;
    static constexpr int kBits = 8, kRange = 128, kOffset = 0, kFileBytes = 34;
    static constexpr bool kHasMin = false;
    static void levels(const uint8_t* block, uint8_t* q) { std::memcpy(q, block + 2, 32); }
};
struct FileIQ4_NL : HalfScale {
    static constexpr Format kFormat = Format::IQ4_NL;
    static constexpr int kBits = 4, kRange = 128, kOffset = 0, kFileBytes = 18;
    static constexpr bool kHasMin = false;
    static constexpr int8_t kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static void levels(const uint8_t* block, uint8_t* q) { read_nibbles(block + 2, 16, q); }
};
// Values of E2M1 doubled, the scale halved; 16 is added so that they are unsigned.
struct FileMXFP4 {
    static constexpr Format kFormat = Format::MXFP4;
    static constexpr Scale kScale = Scale::bf16;
    static constexpr int kBits = 4, kRange = 31, kOffset = 16, kFileBytes = 17;
    static constexpr bool kHasMin = false;
    static constexpr int8_t kTable[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
    static void levels(const uint8_t* block, uint8_t* q) { read_nibbles(block + 1, 16, q); }
    // 2^(e - 128): subnormal for e < 2
    static uint16_t scale(const uint8_t* block) { return static_cast<uint16_t>(*block < 2 ? 0x20 << *block : (*block - 1) << 7); }
};

using Q4_0 = Block32Format<FileQ4_0>;
using Q4_1 = Block32Format<FileQ4_1>;
using Q5_0 = Block32Format<FileQ5_0>;
using Q5_1 = Block32Format<FileQ5_1>;
using Q8_0 = Block32Format<FileQ8_0>;
using IQ4_NL = Block32Format<FileIQ4_NL>;
using MXFP4 = Block32Format<FileMXFP4>;

} // namespace tuili::TUILI_ISA
