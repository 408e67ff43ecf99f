// Quantising 32 activations with 256-bit registers, for the AVX2 and AVX-512 levels. Include after one level's vec.h.
#pragma once
#include "kernels/inline.h"
#include <cstdint>
#include <immintrin.h>

namespace tuili::TUILI_ISA {

// The largest |x| of 32 floats, as its bits (so that NaN > infinity > every number).
TUILI_INLINE int32_t max_magnitude(const float* x) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    const auto magnitude = [&](int i) {
        return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), mask);
    };
    const __m256i a = _mm256_max_epi32(magnitude(0), magnitude(8)), b = _mm256_max_epi32(magnitude(16), magnitude(24));
    const __m256i c = _mm256_max_epi32(a, b);
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

// Sums of 16 columns: of every first and second of four, and of every third and fourth.
struct PairSums {
    int32_t even, odd;
};

// q = round(x * inverse) of 32 columns, to nearest even; sums of each half.
TUILI_INLINE void quantise_block(const float* x, float inverse, int8_t* q, PairSums (&sums)[2]) {
    const __m256 r = _mm256_set1_ps(inverse);
    const auto integers = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), r)); };
    const __m256i lo = _mm256_packs_epi32(integers(0), integers(8)), hi = _mm256_packs_epi32(integers(16), integers(24));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i v = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), v);
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), v);
    s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xb1));
    const auto pair = [](int32_t both) { return PairSums{static_cast<int16_t>(both), both >> 16}; };
    sums[0] = pair(_mm_cvtsi128_si32(_mm256_castsi256_si128(s)));
    sums[1] = pair(_mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1)));
}

} // namespace tuili::TUILI_ISA
