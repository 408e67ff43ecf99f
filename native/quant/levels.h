// Storing the integer levels of 16 rows so that one 64-byte vector holds 4 columns of every row: byte r * 4 + i is row r, column
// i.
//
// A block format's header file is its byte layout, twice: the file's (`pack_row` reads it, as the format's definition says) and
// ours
// (`Reader` decodes 64 bytes at a time, `unpack_row` one row, exactly). Everything else is shared. Include after one level's
// bytes.h.
#pragma once
#include "kernels/half.h"
#include "kernels/linear.h"
#include <bit>
#include <cstring>

namespace tuili::TUILI_ISA {

TUILI_INLINE uint32_t load32(const void* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}
TUILI_INLINE void store32(void* p, uint32_t v) { std::memcpy(p, &v, 4); }
TUILI_INLINE uint64_t load64(const void* p) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    return v;
}
TUILI_INLINE void store64(void* p, uint64_t v) { std::memcpy(p, &v, 8); }
TUILI_INLINE uint16_t load16(const void* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}
TUILI_INLINE float load_half(const void* p) { return half_to_float(load16(p)); }

// Reading the file's levels, eight bytes at a time.
inline constexpr uint64_t kEachByte = 0x0101010101010101u;

// `bytes` bytes of nibbles: the low ones first, then the high ones.
TUILI_INLINE void read_nibbles(const uint8_t* p, int bytes, uint8_t* q) {
    for (int i = 0; i < bytes; i += 8) {
        const uint64_t x = load64(p + i);
        store64(q + i, x & kEachByte * 15);
        store64(q + bytes + i, x >> 4 & kEachByte * 15);
    }
}
// 32 bytes of crumbs: byte l holds the columns l, 32 + l, 64 + l, 96 + l. They become the bits from `shift` on.
TUILI_INLINE void read_crumbs(const uint8_t* p, int shift, uint8_t* q) {
    for (int i = 0; i < 32; i += 8)
        for (int s = 0; s < 4; s++)
            store64(q + s * 32 + i, load64(q + s * 32 + i) | (load64(p + i) >> 2 * s & kEachByte * 3) << shift);
}
// 32 bytes of single bits: bit j of byte l is column 32 * j + l.
TUILI_INLINE void read_bits(const uint8_t* p, int shift, uint8_t* q) {
    for (int i = 0; i < 32; i += 8)
        for (int j = 0; j < 8; j++) store64(q + j * 32 + i, load64(q + j * 32 + i) | (load64(p + i) >> j & kEachByte) << shift);
}
// Fifth bits of 32 levels: bit j of byte i is column 8 * i + j.
TUILI_INLINE void read_fifth_bits(const uint8_t* p, uint8_t* q) {
    for (int i = 0; i < 4; i++) {
        const uint64_t bit_in_its_byte = p[i] * kEachByte & 0x8040201008040201u;
        const uint64_t fifth = ((bit_in_its_byte + kEachByte * 127) & kEachByte * 128) >> 3;
        store64(q + i * 8, load64(q + i * 8) | fifth);
    }
}

// The low four bits of 32 levels of row r: 4 vectors, columns v*4+i in the low nibbles, 16+v*4+i in the high ones.
TUILI_INLINE void put_nibbles(uint8_t* vectors, int r, const uint8_t* q) {
    for (int v = 0; v < 4; v++) {
        const uint32_t low = load32(q + v * 4) & 0x0f0f0f0fu, high = load32(q + 16 + v * 4) & 0x0f0f0f0fu;
        store32(vectors + v * 64 + r * 4, low | high << 4);
    }
}
TUILI_INLINE void get_nibbles(const uint8_t* vectors, int r, uint8_t* q) {
    for (int v = 0; v < 4; v++) {
        const uint32_t x = load32(vectors + v * 64 + r * 4);
        store32(q + v * 4, x & 0x0f0f0f0fu);
        store32(q + 16 + v * 4, x >> 4 & 0x0f0f0f0fu);
    }
}
// Bit 4 of 32 levels of row r: one vector, bit s of byte r*4+i is column s*4+i.
TUILI_INLINE void put_fifth_bits(uint8_t* vector, int r, const uint8_t* q) {
    uint32_t bits = 0;
    for (int s = 0; s < 8; s++) bits |= (load32(q + s * 4) >> 4 & 0x01010101u) << s;
    store32(vector + r * 4, bits);
}
TUILI_INLINE void get_fifth_bits(const uint8_t* vector, int r, uint8_t* q) {
    const uint32_t bits = load32(vector + r * 4);
    for (int s = 0; s < 8; s++) store32(q + s * 4, load32(q + s * 4) | (bits >> s & 0x01010101u) << 4);
}
// Two bits of 16 levels of row r: one vector, bits 2s and 2s+1 of byte r*4+i are column s*4+i.
TUILI_INLINE void put_crumbs(uint8_t* vector, int r, const uint8_t* q, int shift) {
    uint32_t bits = 0;
    for (int s = 0; s < 4; s++) bits |= (load32(q + s * 4) >> shift & 0x03030303u) << 2 * s;
    store32(vector + r * 4, bits);
}
TUILI_INLINE void get_crumbs(const uint8_t* vector, int r, uint8_t* q, int shift) {
    const uint32_t bits = load32(vector + r * 4);
    for (int s = 0; s < 4; s++) store32(q + s * 4, load32(q + s * 4) | (bits >> 2 * s & 0x03030303u) << shift);
}

TUILI_INLINE void decode_nibbles(const uint8_t* vector, Bytes& low, Bytes& high) {
    const Bytes x = load_bytes(vector);
    low = x & 0x0f;
    high = shift_right(x, 4) & 0x0f;
}
// Vector v of four nibble vectors with its fifth bits: columns v*4.. and 16+v*4..
TUILI_INLINE void decode_five_bits(const uint8_t* nibbles, const uint8_t* fifth_bits, int v, Bytes& low, Bytes& high) {
    const Bytes h = load_bytes(fifth_bits);
    decode_nibbles(nibbles + v * 64, low, high);
    low = low | (shift_left(h, 4 - v) & 0x10);
    high = high | (shift_right(h, v) & 0x10);
}

} // namespace tuili::TUILI_ISA
