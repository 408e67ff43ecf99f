// 64 weight bytes (16 output rows, 4 columns each) and their dot products with 4 activations, AVX2.
//
// vpmaddubsw adds two products u8 * s8 in 16 bits; those sums are added up in 16 bits as far as the weights' range allows before
// they widen to 32, so every sum stays exact.
#pragma once
#include "kernels/avx2/vec.h"
#include "kernels/inline.h"
#include <cstring>
#include <type_traits>

#include "kernels/avx2/quantise.h" // needs vec.h

namespace tuili::avx2 {

// Rows that the direct kernel takes at once.
inline constexpr int kDirectStep = 4;

struct Bytes {
    __m256i lo, hi;
};

// Called with the levels of each block of a packed stream, kLines cache lines long, by kernels of M rows. Measured on Zen 3: one
// core reads 17 to 20 GB/s from memory instead of 13 to 15; a dozen blocks ahead is about right for every format.
// (Assembly, because GCC drops calls of a function that does nothing but prefetch.)
template <int M, int kLines>
TUILI_INLINE void prefetch_stream(const uint8_t* p) {
    TUILI_UNROLL for (int i = 0; i <= kLines; i++) asm volatile("prefetcht0 %0" : : "m"(p[kLines * 768 + i * 64]));
}

// For the L2 cache.
TUILI_INLINE void prefetch_later(const uint8_t* p) { asm volatile("prefetcht1 %0" : : "m"(*p)); }

TUILI_INLINE Bytes load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
TUILI_INLINE void store_bytes(uint8_t* p, const Bytes& v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), v.hi);
}
TUILI_INLINE Bytes operator&(const Bytes& v, int mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(v.lo, m), _mm256_and_si256(v.hi, m)};
}
TUILI_INLINE Bytes operator|(const Bytes& a, const Bytes& b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
// Shifts within 16-bit lanes: mask afterwards.
TUILI_INLINE Bytes shift_left(const Bytes& v, int n) { return {_mm256_slli_epi16(v.lo, n), _mm256_slli_epi16(v.hi, n)}; }
TUILI_INLINE Bytes shift_right(const Bytes& v, int n) { return {_mm256_srli_epi16(v.lo, n), _mm256_srli_epi16(v.hi, n)}; }
// table[v], for bytes below 16.
TUILI_INLINE Bytes look_up(const int8_t* table, const Bytes& v) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(t, v.lo), _mm256_shuffle_epi8(t, v.hi)};
}

// Sixteen small integers as floats.
TUILI_INLINE Vec16 floats_of(const uint8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
}
TUILI_INLINE Vec16 floats_of(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
}
TUILI_INLINE Vec16 floats_of_bf16(const uint16_t* p) {
    const auto widen = [](const uint16_t* q) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
    };
    return {widen(p), widen(p + 8)};
}

// Keeps the compiler from regrouping a sum, which would cost it registers.
TUILI_INLINE void pin(__m256i& v) { asm("" : "+x"(v)); }

TUILI_INLINE __m256i broadcast4(const void* p) {
    int v;
    std::memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

// Sums of neighbours, in 32 bits.
TUILI_INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

TUILI_INLINE Vec16 scaled_floats(__m256i lo, __m256i hi, float scale) {
    const __m256 s = _mm256_set1_ps(scale);
    return {_mm256_mul_ps(_mm256_cvtepi32_ps(lo), s), _mm256_mul_ps(_mm256_cvtepi32_ps(hi), s)};
}

} // namespace tuili::avx2

#include "kernels/linear_panel.h" // needs Bytes

namespace tuili::avx2 {

// What ActBlock's offsets hold: here the sums that belong to the first and the second 16-bit half of a lane.
TUILI_INLINE int32_t start_word(int32_t even, int32_t odd) {
    return static_cast<int32_t>(static_cast<uint32_t>(even) & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(odd) << 16);
}

// The integer sum of one scale block of kSteps * 4 columns. Weights are bytes 0 .. kRange with kOffset still to be taken off.
// `offset` points to the start_word of -unit * (the block's activations), unit being 16 for 32 columns, 32 for 16.
//
// With an offset, the whole block is added up in 16 bits: levels less their offset are at most 16 (32 columns) or 32 (16 columns)
// in size, so the end fits, and that the way there may wrap does no harm.
template <int kRange, int kSteps, int kOffset>
struct UnsignedDot : PlainPanel<kSteps> {
    static constexpr int kUnit = kSteps == 8 ? 16 : 32;
    static constexpr int kFlush = kOffset != 0 || kRange <= 15 ? kSteps : 4;
    static_assert(kOffset == 0 || (kOffset <= kUnit && kRange - kOffset <= kUnit));
    static constexpr int kRows = 6; // of the panel kernel: what fits the registers
    // Up to so many rows, decoding a tile anew for every four costs less than expanding it once. Measured: the more there is to
    // decode (fifth bits, two scales a block), the fewer.
    static constexpr int kDirectRows = kSteps == 4 ? 4 : kRange <= 15 ? 12 : 8;
    __m256i pairs_lo, pairs_hi, lo, hi;

    TUILI_INLINE void start(const int32_t* offset, const uint8_t*) {
        if constexpr (kOffset == 0) return;
        pairs_lo = broadcast4(offset);
        if constexpr (kOffset < kUnit) pairs_lo = _mm256_srai_epi16(pairs_lo, kUnit / kOffset == 2 ? 1 : 3);
        pairs_hi = pairs_lo;
    }

    // Step number `step` (a constant once unrolled) of kSteps.
    TUILI_INLINE void add(const Bytes& w, const int8_t* a, int step) {
        const __m256i x = broadcast4(a);
        const __m256i p = _mm256_maddubs_epi16(w.lo, x), q = _mm256_maddubs_epi16(w.hi, x);
        const bool fresh = kOffset == 0 && step % kFlush == 0;
        pairs_lo = fresh ? p : _mm256_add_epi16(pairs_lo, p);
        pairs_hi = fresh ? q : _mm256_add_epi16(pairs_hi, q);
        pin(pairs_lo);
        pin(pairs_hi);
        if ((step + 1) % kFlush == 0) {
            const __m256i s = widen(pairs_lo), t = widen(pairs_hi);
            lo = step < kFlush ? s : _mm256_add_epi32(lo, s);
            hi = step < kFlush ? t : _mm256_add_epi32(hi, t);
        }
    }

    // float(sum) * scale
    TUILI_INLINE Vec16 result(float scale) const { return scaled_floats(lo, hi, scale); }
};

// The same for signed bytes, whose products widen step by step.
struct SignedDot {
    static constexpr int kSteps = 8, kRows = 5, kDirectRows = 16;
    __m256i lo, hi;

    // A panel keeps sizes and signs: with x's bits flipped where w is negative, |w| * ~x = w * x - |w|. That is one operation any
    // pipe can do instead of a sign, and what it lacks, the sum of |w| over negative w, is the same for every row: the start.
    static constexpr int64_t kExpandedBytes = 64 + kSteps * 128;
    struct Step {
        Bytes sizes, signs;
    };
    static TUILI_INLINE void expand(const Bytes (&w)[kSteps], uint8_t* to) {
        const __m256i zero = _mm256_setzero_si256();
        Bytes negative{zero, zero}; // in 16 bits
        TUILI_UNROLL for (int s = 0; s < kSteps; s++) {
            const Bytes sizes{_mm256_abs_epi8(w[s].lo), _mm256_abs_epi8(w[s].hi)};
            const Bytes signs{_mm256_cmpgt_epi8(zero, w[s].lo), _mm256_cmpgt_epi8(zero, w[s].hi)};
            store_bytes(to + 64 + s * 128, sizes);
            store_bytes(to + 128 + s * 128, signs);
            // signs are -1 or 0
            negative.lo = _mm256_sub_epi16(negative.lo, _mm256_maddubs_epi16(sizes.lo, signs.lo));
            negative.hi = _mm256_sub_epi16(negative.hi, _mm256_maddubs_epi16(sizes.hi, signs.hi));
        }
        store_bytes(to, {widen(negative.lo), widen(negative.hi)});
    }
    static TUILI_INLINE Step step(const uint8_t* expanded, int s) {
        return {load_bytes(expanded + 64 + s * 128), load_bytes(expanded + 128 + s * 128)};
    }

    TUILI_INLINE void start(const int32_t*, const uint8_t* expanded) {
        const Bytes first = expanded ? load_bytes(expanded) : Bytes{_mm256_setzero_si256(), _mm256_setzero_si256()};
        lo = first.lo;
        hi = first.hi;
    }
    TUILI_INLINE void add(const Step& w, const int8_t* a, int) {
        const __m256i x = broadcast4(a);
        add_products(_mm256_maddubs_epi16(w.sizes.lo, _mm256_xor_si256(x, w.signs.lo)),
                     _mm256_maddubs_epi16(w.sizes.hi, _mm256_xor_si256(x, w.signs.hi)));
    }
    TUILI_INLINE void add(const Bytes& w, const int8_t* a, int) {
        const __m256i x = broadcast4(a);
        add_products(_mm256_maddubs_epi16(_mm256_abs_epi8(w.lo), _mm256_sign_epi8(x, w.lo)),
                     _mm256_maddubs_epi16(_mm256_abs_epi8(w.hi), _mm256_sign_epi8(x, w.hi)));
    }
    TUILI_INLINE void add_products(__m256i p, __m256i q) {
        lo = _mm256_add_epi32(lo, widen(p));
        hi = _mm256_add_epi32(hi, widen(q));
        pin(lo);
        pin(hi);
    }

    TUILI_INLINE Vec16 result(float scale) const { return scaled_floats(lo, hi, scale); }
};

template <int kRange, int kSteps, int kOffset>
using Dot = std::conditional_t<kRange == 128, SignedDot, UnsignedDot<kRange, kSteps, kOffset>>;

} // namespace tuili::avx2
