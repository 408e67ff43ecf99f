// Sixteen float lanes, AVX2 + FMA + F16C: two 256-bit registers. Same operations in the same order as every other level.
#pragma once
#include <cstdint>
#include <immintrin.h>

#define TUILI_ISA avx2

namespace tuili::avx2 {

inline constexpr int kLanes = 16;
// Register tile of the float matrix kernels: rows × vectors of 16 lanes that fit the register file.
inline constexpr int kTileRowsMax = 6;

struct Vec16 {
    __m256 lo, hi;
};
struct Mask16 {
    __m256 lo, hi;
};

inline Vec16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec16 v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}
inline Vec16 set1(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v};
}
inline Vec16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

inline Vec16 operator+(Vec16 a, Vec16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec16 operator-(Vec16 a, Vec16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec16 operator*(Vec16 a, Vec16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec16 operator/(Vec16 a, Vec16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }

// a * b + c, rounded once.
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }

// The larger (smaller) lane; b where either is NaN. So clamp with the constant first to keep NaN.
inline Vec16 vmax(Vec16 a, Vec16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec16 vmin(Vec16 a, Vec16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

inline Mask16 greater(Vec16 a, Vec16 b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)}; }
inline Mask16 greater_equal(Vec16 a, Vec16 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
}
inline Mask16 equal(Vec16 a, Vec16 b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)}; }
// Lanes [first, last).
inline Mask16 lanes(int first, int last) {
    const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), j = _mm256_add_epi32(i, _mm256_set1_epi32(8));
    const __m256i f = _mm256_set1_epi32(first - 1), l = _mm256_set1_epi32(last);
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(i, f), _mm256_cmpgt_epi32(l, i))),
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(j, f), _mm256_cmpgt_epi32(l, j)))};
}
inline Vec16 select(Mask16 m, Vec16 yes, Vec16 no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
// Bit i is lane i.
inline uint32_t bits(Mask16 m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) | static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8;
}

inline Vec16 absolute(Vec16 x) {
    const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.lo, m), _mm256_and_ps(x.hi, m)};
}
// Magnitude of x, sign of s.
inline Vec16 copy_sign(Vec16 x, Vec16 s) {
    const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_or_ps(_mm256_and_ps(x.lo, m), _mm256_andnot_ps(m, s.lo)),
            _mm256_or_ps(_mm256_and_ps(x.hi, m), _mm256_andnot_ps(m, s.hi))};
}
// (bits(x) << 23) + 0x3f800000: 2^n, when x holds n + 1.5 * 2^23.
inline Vec16 pow2_from_magic(Vec16 x) {
    const __m256i one = _mm256_set1_epi32(0x3f800000);
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(x.lo), 23), one)),
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(x.hi), 23), one))};
}

// Always the same tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
inline float reduce_add(Vec16 v) {
    const __m256 a = _mm256_add_ps(v.lo, v.hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float reduce_max(Vec16 v) {
    const __m256 a = _mm256_max_ps(v.lo, v.hi);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

inline Vec16 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store_f16(uint16_t* p, Vec16 v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

} // namespace tuili::avx2
