// Sixteen float lanes, AVX-512: one 512-bit register. Same operations in the same order as every other level.
#pragma once
#include <cstdint>

// GCC 12 and 13 warn about the registers that their own headers leave undefined on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#define TUILI_ISA avx512

namespace tuili::avx512 {

inline constexpr int kLanes = 16;
// Register tile of the float matrix kernels: rows × vectors of 16 lanes that fit the register file.
inline constexpr int kTileRowsMax = 12;

struct Vec16 {
    __m512 v;
};
struct Mask16 {
    __mmask16 m;
};

inline Vec16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec16 v) { _mm512_storeu_ps(p, v.v); }
inline Vec16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec16 zero() { return {_mm512_setzero_ps()}; }

inline Vec16 operator+(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec16 operator-(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec16 operator*(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec16 operator/(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }

// a * b + c, rounded once.
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

// The larger (smaller) lane; b where either is NaN. So clamp with the constant first to keep NaN.
inline Vec16 vmax(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec16 vmin(Vec16 a, Vec16 b) { return {_mm512_min_ps(a.v, b.v)}; }

inline Mask16 greater(Vec16 a, Vec16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask16 greater_equal(Vec16 a, Vec16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask16 equal(Vec16 a, Vec16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
// Lanes [first, last).
inline Mask16 lanes(int first, int last) {
    const uint32_t below_last = last >= 16 ? 0xffffu : last <= 0 ? 0u : (1u << last) - 1;
    const uint32_t below_first = first >= 16 ? 0xffffu : first <= 0 ? 0u : (1u << first) - 1;
    return {static_cast<__mmask16>(below_last & ~below_first)};
}
inline Vec16 select(Mask16 m, Vec16 yes, Vec16 no) { return {_mm512_mask_blend_ps(m.m, no.v, yes.v)}; }
// Bit i is lane i.
inline uint32_t bits(Mask16 m) { return m.m; }

inline Vec16 absolute(Vec16 x) {
    return {_mm512_castsi512_ps(_mm512_and_epi32(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff)))};
}
// Magnitude of x, sign of s.
inline Vec16 copy_sign(Vec16 x, Vec16 s) {
    const __m512i m = _mm512_set1_epi32(0x7fffffff);
    return {_mm512_castsi512_ps(
        _mm512_or_epi32(_mm512_and_epi32(_mm512_castps_si512(x.v), m),
                        _mm512_and_epi32(_mm512_castps_si512(s.v), _mm512_set1_epi32(static_cast<int>(0x80000000u)))))};
}
// (bits(x) << 23) + 0x3f800000: 2^n, when x holds n + 1.5 * 2^23.
inline Vec16 pow2_from_magic(Vec16 x) {
    const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(x.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f800000)))};
}

// Always the same tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
inline __m256 low_half(Vec16 v) { return _mm512_castps512_ps256(v.v); }
inline __m256 high_half(Vec16 v) { return _mm512_extractf32x8_ps(v.v, 1); }
inline float reduce_add(Vec16 v) {
    const __m256 a = _mm256_add_ps(low_half(v), high_half(v));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float reduce_max(Vec16 v) {
    const __m256 a = _mm256_max_ps(low_half(v), high_half(v));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

inline Vec16 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline void store_f16(uint16_t* p, Vec16 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT));
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

} // namespace tuili::avx512
