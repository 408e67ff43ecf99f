// The formats with super-blocks of 256 columns whose sub-blocks carry small integer scales: Q2_K .. Q6_K and IQ4_XS.
//
// Packed, a super-block of 16 rows is a head (scales, then d and dmin as f16 x 16 rows) and the levels of its eight blocks of 32
// columns; the head comes first because the memory streams forwards.
#pragma once
#include "quant/block32.h"

namespace tuili::TUILI_ISA {

inline constexpr int kSuper = 256;

// ---- Q4_K, Q5_K: scales and minima of 6 bits for every 32 columns
//   [64] low nibbles of the scales S[block * 16 + row]: byte j holds S[j], S[64 + j]; [64] of the minima M likewise
//   [64] byte j: the high two bits of S[j], S[64 + j], M[j], M[64 + j];  [32] d  [32] dmin
//   8 x ([64] fifth bits in Q5_K, 4 x 64 nibbles)
template <int kBits, Format kName>
struct SuperMin {
    static constexpr Format kFormat = kName;
    static constexpr int kSteps = 8, kFileCols = kSuper, kFileBytes = kBits == 5 ? 176 : 144;
    static constexpr int kRange = kBits == 5 ? 31 : 15, kOffset = 0;
    static constexpr bool kHasMin = true;
    static constexpr int64_t kHead = 256, kFifth = kBits == 5 ? 64 : 0, kBody = kFifth + 256, kRecord = kHead + 8 * kBody;
    static constexpr int kBlockLines = kBody / 64;

    static size_t tile_bytes(int64_t cols) { return static_cast<size_t>(cols / kSuper * kRecord); }

    static void scale_and_min(const uint8_t* packed, int j, uint8_t& s, uint8_t& m) {
        if (j < 4) {
            s = packed[j] & 63;
            m = packed[j + 4] & 63;
        } else {
            s = static_cast<uint8_t>((packed[j + 4] & 15) | packed[j - 4] >> 6 << 4);
            m = static_cast<uint8_t>(packed[j + 4] >> 4 | packed[j] >> 6 << 4);
        }
    }

    static void pack_row(const uint8_t* src, int64_t cols, int r, uint8_t* tile) {
        for (int64_t g = 0; g < cols / kSuper; g++, src += kFileBytes, tile += kRecord) {
            std::memcpy(tile + 192 + r * 2, src, 2);
            std::memcpy(tile + 224 + r * 2, src + 2, 2);
            const uint8_t* qs = src + (kBits == 5 ? 48 : 16);
            uint8_t q[kSuper];
            for (int c = 0; c < 4; c++) read_nibbles(qs + c * 32, 32, q + c * 64);
            if constexpr (kBits == 5) read_bits(src + 16, 4, q);
            for (int j = 0; j < 8; j++) {
                uint8_t s, m;
                scale_and_min(src + 4, j, s, m);
                const int at = j % 4 * 16 + r, high = j / 4;
                tile[at] = static_cast<uint8_t>(tile[at] | (s & 15) << high * 4);
                tile[64 + at] = static_cast<uint8_t>(tile[64 + at] | (m & 15) << high * 4);
                tile[128 + at] = static_cast<uint8_t>(tile[128 + at] | s >> 4 << high * 2 | m >> 4 << (4 + high * 2));
                uint8_t* body = tile + kHead + j * kBody;
                if constexpr (kBits == 5) put_fifth_bits(body, r, q + j * 32);
                put_nibbles(body + kFifth, r, q + j * 32);
            }
        }
    }

    static void unpack_row(const uint8_t* tile, int r, int64_t cols, float* out) {
        for (int64_t g = 0; g < cols / kSuper; g++, tile += kRecord) {
            const float d = load_half(tile + 192 + r * 2), dmin = load_half(tile + 224 + r * 2);
            for (int j = 0; j < 8; j++) {
                const int at = j % 4 * 16 + r, high = j / 4;
                const int s = (tile[at] >> high * 4 & 15) | (tile[128 + at] >> high * 2 & 3) << 4;
                const int m = (tile[64 + at] >> high * 4 & 15) | (tile[128 + at] >> (4 + high * 2) & 3) << 4;
                const float scale = d * static_cast<float>(s), min = dmin * static_cast<float>(m);
                const uint8_t* body = tile + kHead + j * kBody;
                uint8_t q[32];
                get_nibbles(body + kFifth, r, q);
                if constexpr (kBits == 5) get_fifth_bits(body, r, q);
                for (int k = 0; k < 32; k++) *out++ = scale * static_cast<float>(q[k]) - min;
            }
        }
    }

    struct Reader {
        const uint8_t *tile, *body = nullptr;
        Vec16 d = zero(), dmin = zero(); // dmin negated
        int at = 0;
        alignas(64) uint8_t scales[128], mins[128];

        TUILI_INLINE Reader(const uint8_t* tile_, int64_t) : tile(tile_) {}
        TUILI_INLINE void block(int64_t b) {
            const uint8_t* record = tile + b / 8 * kRecord;
            at = static_cast<int>(b % 8) * 16;
            body = record + kHead + b % 8 * kBody;
            if (at == 0) open(record);
        }
        TUILI_INLINE void open(const uint8_t* record) {
            const Bytes s = load_bytes(record), m = load_bytes(record + 64), h = load_bytes(record + 128);
            store_bytes(scales, (s & 15) | (shift_left(h, 4) & 48));
            store_bytes(scales + 64, (shift_right(s, 4) & 15) | (shift_left(h, 2) & 48));
            store_bytes(mins, (m & 15) | (h & 48));
            store_bytes(mins + 64, (shift_right(m, 4) & 15) | (shift_right(h, 2) & 48));
            d = load_f16(reinterpret_cast<const uint16_t*>(record + 192));
            dmin = zero() - load_f16(reinterpret_cast<const uint16_t*>(record + 224));
        }
        TUILI_INLINE Vec16 scale(int) const { return d * floats_of(scales + at); }
        TUILI_INLINE Vec16 min(int) const { return dmin * floats_of(mins + at); }
        TUILI_INLINE void decode(int, int v, Bytes& low, Bytes& high) const {
            if constexpr (kBits == 5)
                decode_five_bits(body + 64, body, v, low, high);
            else
                decode_nibbles(body + v * 64, low, high);
        }
    };
};
using Q4_K = SuperMin<4, Format::Q4_K>;
using Q5_K = SuperMin<5, Format::Q5_K>;

// ---- Q6_K: a signed 8-bit scale for every 16 columns
//   [256] scales [half block * 16 + row]  [32] d  [32] unused
//   16 x ([64] columns v*4+i in the low nibbles, 8+v*4+i in the high, v = 0; [64] v = 1; [64] top two bits of the 16 columns)
struct Q6_K {
    static constexpr Format kFormat = Format::Q6_K;
    static constexpr int kSteps = 4, kFileCols = kSuper, kFileBytes = 210, kRange = 63, kOffset = 32;
    static constexpr bool kHasMin = false;
    static constexpr int64_t kHead = 320, kRecord = kHead + 16 * 192;
    static constexpr int kBlockLines = 6;

    static size_t tile_bytes(int64_t cols) { return static_cast<size_t>(cols / kSuper * kRecord); }

    static void pack_row(const uint8_t* src, int64_t cols, int r, uint8_t* tile) {
        for (int64_t g = 0; g < cols / kSuper; g++, src += kFileBytes, tile += kRecord) {
            uint8_t q[kSuper];
            for (int c = 0; c < 2; c++) {
                read_nibbles(src + c * 64, 64, q + c * 128);
                read_crumbs(src + 128 + c * 32, 4, q + c * 128);
            }
            for (int j = 0; j < 16; j++) {
                tile[j * 16 + r] = src[192 + j];
                uint8_t* body = tile + kHead + j * 192 + r * 4;
                const uint8_t* p = q + j * 16;
                store32(body, (load32(p) & 0x0f0f0f0fu) | (load32(p + 8) & 0x0f0f0f0fu) << 4);
                store32(body + 64, (load32(p + 4) & 0x0f0f0f0fu) | (load32(p + 12) & 0x0f0f0f0fu) << 4);
                put_crumbs(tile + kHead + j * 192 + 128, r, p, 4);
            }
            std::memcpy(tile + 256 + r * 2, src + 208, 2);
        }
    }

    static void unpack_row(const uint8_t* tile, int r, int64_t cols, float* out) {
        for (int64_t g = 0; g < cols / kSuper; g++, tile += kRecord) {
            const float d = load_half(tile + 256 + r * 2);
            for (int j = 0; j < 16; j++) {
                const float scale = d * static_cast<float>(static_cast<int8_t>(tile[j * 16 + r]));
                const uint8_t* body = tile + kHead + j * 192;
                uint8_t q[16];
                for (int v = 0; v < 2; v++) {
                    const uint32_t x = load32(body + v * 64 + r * 4);
                    store32(q + v * 4, x & 0x0f0f0f0fu);
                    store32(q + 8 + v * 4, x >> 4 & 0x0f0f0f0fu);
                }
                get_crumbs(body + 128, r, q, 4);
                for (int k = 0; k < 16; k++) *out++ = scale * static_cast<float>(q[k] - 32);
            }
        }
    }

    struct Reader {
        const uint8_t *tile, *body = nullptr;
        const int8_t* scales = nullptr;
        Vec16 d = zero();
        TUILI_INLINE Reader(const uint8_t* tile_, int64_t) : tile(tile_) {}
        TUILI_INLINE void block(int64_t b) {
            const uint8_t* record = tile + b / 8 * kRecord;
            scales = reinterpret_cast<const int8_t*>(record) + b % 8 * 32;
            body = record + kHead + b % 8 * 384;
            if (b % 8 == 0) d = load_f16(reinterpret_cast<const uint16_t*>(record + 256));
        }
        TUILI_INLINE Vec16 scale(int half) const { return d * floats_of(scales + half * 16); }
        TUILI_INLINE Vec16 min(int) const { return zero(); }
        TUILI_INLINE void decode(int half, int v, Bytes& low, Bytes& high) const {
            const Bytes h = load_bytes(body + half * 192 + 128);
            decode_nibbles(body + half * 192 + v * 64, low, high);
            low = low | (shift_left(h, v == 0 ? 4 : 2) & 0x30);
            high = high | ((v == 0 ? h : shift_right(h, 2)) & 0x30);
        }
    };
};

// ---- Q3_K: three bits, a 6-bit scale for every 16 columns
//   [256] scales as signed bytes [half block * 16 + row]  [32] d  [32] unused
//   8 x ([64] third bits: bit half * 4 + s of byte r*4+i is column half*16 + s*4 + i; 2 x [64] crumbs)
// ---- Q2_K: two bits, a 4-bit scale and minimum for every 16 columns
//   [256] scale | minimum << 4 [half block * 16 + row]  [32] d  [32] dmin
//   8 x (2 x [64] crumbs)
template <int kBits, Format kName>
struct SuperCrumbs {
    static constexpr Format kFormat = kName;
    static constexpr int kSteps = 4, kFileCols = kSuper, kFileBytes = kBits == 3 ? 110 : 84;
    static constexpr int kRange = 15, kOffset = kBits == 3 ? 4 : 0;
    static constexpr bool kHasMin = kBits == 2;
    static constexpr int64_t kHead = 320, kThird = kBits == 3 ? 64 : 0, kBody = kThird + 128, kRecord = kHead + 8 * kBody;
    static constexpr int kBlockLines = kBody / 64;

    static size_t tile_bytes(int64_t cols) { return static_cast<size_t>(cols / kSuper * kRecord); }

    // Sixteen 6-bit scales, offset by 32: low nibbles in bytes 0 .. 7, high two bits in bytes 8 .. 11.
    static uint8_t scale_of(const uint8_t* src, int j) {
        if constexpr (kBits == 2) return src[j];
        const uint8_t* p = src + 96;
        return static_cast<uint8_t>(((p[j % 8] >> j / 8 * 4 & 15) | (p[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32);
    }

    static void pack_row(const uint8_t* src, int64_t cols, int r, uint8_t* tile) {
        for (int64_t g = 0; g < cols / kSuper; g++, src += kFileBytes, tile += kRecord) {
            uint8_t q[kSuper] = {};
            for (int c = 0; c < 2; c++) read_crumbs(src + (kBits == 3 ? 32 : 16) + c * 32, 0, q + c * 128);
            if constexpr (kBits == 3) read_bits(src, 2, q);
            for (int j = 0; j < 16; j++) {
                tile[j * 16 + r] = scale_of(src, j);
                uint8_t* body = tile + kHead + j / 2 * kBody;
                put_crumbs(body + kThird + j % 2 * 64, r, q + j * 16, 0);
                if constexpr (kBits == 3) {
                    uint32_t bits = load32(body + r * 4);
                    for (int s = 0; s < 4; s++) bits |= (load32(q + j * 16 + s * 4) >> 2 & 0x01010101u) << (j % 2 * 4 + s);
                    store32(body + r * 4, bits);
                }
            }
            std::memcpy(tile + 256 + r * 2, src + (kBits == 3 ? 108 : 80), 2);
            if constexpr (kBits == 2) std::memcpy(tile + 288 + r * 2, src + 82, 2);
        }
    }

    static void unpack_row(const uint8_t* tile, int r, int64_t cols, float* out) {
        for (int64_t g = 0; g < cols / kSuper; g++, tile += kRecord) {
            const float d = load_half(tile + 256 + r * 2), dmin = load_half(tile + 288 + r * 2);
            for (int j = 0; j < 16; j++) {
                const uint8_t* body = tile + kHead + j / 2 * kBody;
                const uint8_t stored = tile[j * 16 + r];
                uint8_t q[16] = {};
                get_crumbs(body + kThird + j % 2 * 64, r, q, 0);
                if constexpr (kBits == 3) {
                    const float scale = d * static_cast<float>(static_cast<int8_t>(stored));
                    const uint32_t bits = load32(body + r * 4);
                    for (int s = 0; s < 4; s++)
                        store32(q + s * 4, load32(q + s * 4) | (bits >> (j % 2 * 4 + s) & 0x01010101u) << 2);
                    for (int k = 0; k < 16; k++) *out++ = scale * static_cast<float>(q[k] - 4);
                } else {
                    const float scale = d * static_cast<float>(stored & 15), min = dmin * static_cast<float>(stored >> 4);
                    for (int k = 0; k < 16; k++) *out++ = scale * static_cast<float>(q[k]) - min;
                }
            }
        }
    }

    struct Reader {
        const uint8_t *tile, *body = nullptr, *scales = nullptr;
        Vec16 d = zero(), dmin = zero(); // dmin negated
        alignas(64) uint8_t low_nibbles[32], high_nibbles[32];

        TUILI_INLINE Reader(const uint8_t* tile_, int64_t) : tile(tile_) {}
        TUILI_INLINE void block(int64_t b) {
            const uint8_t* record = tile + b / 8 * kRecord;
            scales = record + b % 8 * 32;
            body = record + kHead + b % 8 * kBody;
            if (b % 8 == 0) {
                d = load_f16(reinterpret_cast<const uint16_t*>(record + 256));
                if constexpr (kBits == 2) dmin = zero() - load_f16(reinterpret_cast<const uint16_t*>(record + 288));
            }
            if constexpr (kBits == 2) {
                for (int i = 0; i < 32; i++) low_nibbles[i] = scales[i] & 15;
                for (int i = 0; i < 32; i++) high_nibbles[i] = scales[i] >> 4;
            }
        }
        TUILI_INLINE Vec16 scale(int half) const {
            if constexpr (kBits == 2) return d * floats_of(low_nibbles + half * 16);
            return d * floats_of(reinterpret_cast<const int8_t*>(scales) + half * 16);
        }
        TUILI_INLINE Vec16 min(int half) const { return dmin * floats_of(high_nibbles + half * 16); }
        TUILI_INLINE void decode(int half, int v, Bytes& low, Bytes& high) const {
            const Bytes x = load_bytes(body + kThird + half * 64);
            low = (v == 0 ? x : shift_right(x, 2)) & 3;
            high = shift_right(x, v == 0 ? 4 : 6) & 3;
            if constexpr (kBits == 3) {
                const Bytes h = load_bytes(body);
                low = low | (bring(h, half * 4 + v) & 4);
                high = high | (bring(h, half * 4 + v + 2) & 4);
            }
        }
        // Bit n moved to bit 2.
        static TUILI_INLINE Bytes bring(const Bytes& h, int n) { return n < 2 ? shift_left(h, 2 - n) : shift_right(h, n - 2); }
    };
};
using Q2_K = SuperCrumbs<2, Format::Q2_K>;
using Q3_K = SuperCrumbs<3, Format::Q3_K>;

// ---- IQ4_XS: the table of IQ4_NL, a 6-bit scale for every 32 columns
//   [128] scales as signed bytes [block * 16 + row]  [32] d  [32] unused
//   8 x (4 x 64 nibbles)
struct IQ4_XS {
    static constexpr Format kFormat = Format::IQ4_XS;
    static constexpr int kSteps = 8, kFileCols = kSuper, kFileBytes = 136, kRange = 128, kOffset = 0;
    static constexpr bool kHasMin = false;
    static constexpr int64_t kHead = 192, kBody = 256, kRecord = kHead + 8 * kBody;
    static constexpr int kBlockLines = kBody / 64;

    static size_t tile_bytes(int64_t cols) { return static_cast<size_t>(cols / kSuper * kRecord); }

    static void pack_row(const uint8_t* src, int64_t cols, int r, uint8_t* tile) {
        for (int64_t g = 0; g < cols / kSuper; g++, src += kFileBytes, tile += kRecord) {
            std::memcpy(tile + 128 + r * 2, src, 2);
            for (int j = 0; j < 8; j++) {
                const int low = src[4 + j / 2] >> j % 2 * 4 & 15, high = load16(src + 2) >> j * 2 & 3;
                tile[j * 16 + r] = static_cast<uint8_t>((low | high << 4) - 32);
                uint8_t q[32];
                read_nibbles(src + 8 + j * 16, 16, q);
                put_nibbles(tile + kHead + j * kBody, r, q);
            }
        }
    }

    static void unpack_row(const uint8_t* tile, int r, int64_t cols, float* out) {
        for (int64_t g = 0; g < cols / kSuper; g++, tile += kRecord) {
            const float d = load_half(tile + 128 + r * 2);
            for (int j = 0; j < 8; j++) {
                const float scale = d * static_cast<float>(static_cast<int8_t>(tile[j * 16 + r]));
                uint8_t q[32];
                get_nibbles(tile + kHead + j * kBody, r, q);
                for (int k = 0; k < 32; k++) *out++ = scale * static_cast<float>(FileIQ4_NL::kTable[q[k]]);
            }
        }
    }

    struct Reader {
        const uint8_t *tile, *body = nullptr;
        const int8_t* scales = nullptr;
        Vec16 d = zero();
        TUILI_INLINE Reader(const uint8_t* tile_, int64_t) : tile(tile_) {}
        TUILI_INLINE void block(int64_t b) {
            const uint8_t* record = tile + b / 8 * kRecord;
            scales = reinterpret_cast<const int8_t*>(record) + b % 8 * 16;
            body = record + kHead + b % 8 * kBody;
            if (b % 8 == 0) d = load_f16(reinterpret_cast<const uint16_t*>(record + 128));
        }
        TUILI_INLINE Vec16 scale(int) const { return d * floats_of(scales); }
        TUILI_INLINE Vec16 min(int) const { return zero(); }
        TUILI_INLINE void decode(int, int v, Bytes& low, Bytes& high) const {
            decode_nibbles(body + v * 64, low, high);
            low = look_up(FileIQ4_NL::kTable, low);
            high = look_up(FileIQ4_NL::kTable, high);
        }
    };
};

} // namespace tuili::TUILI_ISA
