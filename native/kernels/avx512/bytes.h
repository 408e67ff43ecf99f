// 64 weight bytes (16 output rows, 4 columns each) and their dot products with 4 activations, AVX-512 with VNNI.
#pragma once
#include "kernels/avx512/vec.h"
#include "kernels/inline.h"
#include <cstring>

#include "kernels/avx2/quantise.h" // needs vec.h

namespace tuili::avx512 {

// Rows that the direct kernel takes at once.
inline constexpr int kDirectStep = 8;

struct Bytes {
    __m512i v;
};

// Called with the levels of each block of a packed stream, kLines cache lines long, by kernels of M rows. Measured on Zen 4: with
// one or two rows the hardware prefetchers do best alone, and a far prefetch costs up to half the rate; more rows gain from 8
// KiB.
template <int M, int kLines>
TUILI_INLINE void prefetch_stream(const uint8_t* p) {
    if constexpr (M > 2) TUILI_UNROLL for (int i = 0; i <= kLines; i++) asm volatile("prefetcht1 %0" : : "m"(p[8192 + i * 64]));
}

// For the L2 cache.
TUILI_INLINE void prefetch_later(const uint8_t* p) { asm volatile("prefetcht1 %0" : : "m"(*p)); }

TUILI_INLINE Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
TUILI_INLINE void store_bytes(uint8_t* p, const Bytes& v) { _mm512_storeu_si512(p, v.v); }
TUILI_INLINE Bytes operator&(const Bytes& v, int mask) {
    return {_mm512_and_si512(v.v, _mm512_set1_epi8(static_cast<char>(mask)))};
}
TUILI_INLINE Bytes operator|(const Bytes& a, const Bytes& b) { return {_mm512_or_si512(a.v, b.v)}; }
// Shifts within 16-bit lanes: mask afterwards.
TUILI_INLINE Bytes shift_left(const Bytes& v, int n) { return {_mm512_slli_epi16(v.v, static_cast<unsigned>(n))}; }
TUILI_INLINE Bytes shift_right(const Bytes& v, int n) { return {_mm512_srli_epi16(v.v, static_cast<unsigned>(n))}; }
// table[v], for bytes below 16.
TUILI_INLINE Bytes look_up(const int8_t* table, const Bytes& v) {
    const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm512_shuffle_epi8(t, v.v)};
}

// Sixteen small integers as floats.
TUILI_INLINE Vec16 floats_of(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
TUILI_INLINE Vec16 floats_of(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
TUILI_INLINE Vec16 floats_of_bf16(const uint16_t* p) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16))};
}

TUILI_INLINE __m512i broadcast4(const void* p) {
    int v;
    std::memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

} // namespace tuili::avx512

#include "kernels/linear_panel.h" // needs Bytes

namespace tuili::avx512 {

// What ActBlock's offsets hold: here the sum.
TUILI_INLINE int32_t start_word(int32_t even, int32_t odd) { return even + odd; }

// The integer sum of one scale block of kSteps * 4 columns. Weights are bytes 0 .. kRange with kOffset still to be taken off, or
// signed bytes where kRange is 128 (made unsigned here). `offset` points to -unit * (sum of the block's activations), unit being
// 16 for 32 columns, 32 for 16.
template <int kRange, int kSteps, int kOffset>
struct Dot : PlainPanel<kSteps> {
    static constexpr int kUnit = kSteps == 8 ? 16 : 32;
    static constexpr int kShift = kRange == 128 ? 128 : kOffset;
    static constexpr int kRows = 12;       // of the panel kernel: what fits the registers
    static constexpr int kDirectRows = 32; // up to so many rows a tile is decoded in registers instead of expanded
    __m512i sum;

    TUILI_INLINE void start(const int32_t* offset, const uint8_t*) {
        if constexpr (kShift == 0) {
            sum = _mm512_setzero_si512();
        } else {
            sum = broadcast4(offset);
            if constexpr (kShift < kUnit) sum = _mm512_srai_epi32(sum, kUnit / kShift == 2 ? 1 : 3);
            if constexpr (kShift > kUnit) sum = _mm512_slli_epi32(sum, kShift / kUnit == 8 ? 3 : 2);
        }
    }

    TUILI_INLINE void add(const Bytes& w, const int8_t* a, int) {
        const __m512i u = kRange == 128 ? _mm512_xor_si512(w.v, _mm512_set1_epi8(static_cast<char>(0x80))) : w.v;
        sum = _mm512_dpbusd_epi32(sum, u, broadcast4(a));
    }

    // float(sum) * scale
    TUILI_INLINE Vec16 result(float scale) const { return {_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale))}; }
};

} // namespace tuili::avx512
