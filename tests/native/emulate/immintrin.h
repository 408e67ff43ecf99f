// Stands in for the compiler's header: the AVX-512 that our kernels use, in plain loops, so that they run on a CPU without it.
//
// Semantics: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. Compiled without -mavx512*.
#pragma once
#include_next <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

struct Emulated512 {
    union {
        float f[16];
        int32_t i[16];
        uint16_t h[32];
        uint8_t b[64];
    };
};
#define __m512 Emulated512
#define __m512i Emulated512

template <class F>
inline Emulated512 floats_by(F each) {
    Emulated512 r;
    for (int n = 0; n < 16; n++) r.f[n] = each(n);
    return r;
}
template <class F>
inline Emulated512 ints_by(F each) {
    Emulated512 r;
    for (int n = 0; n < 16; n++) r.i[n] = static_cast<int32_t>(each(n));
    return r;
}
template <class To, class Register>
inline To lane_of(const Register& v, int n) {
    To x;
    std::memcpy(&x, reinterpret_cast<const char*>(&v) + n * static_cast<int>(sizeof(To)), sizeof x);
    return x;
}

// Functions that an overload cannot tell from the compiler's own.
inline Emulated512 emulated_load(const void* p) {
    Emulated512 r;
    std::memcpy(&r, p, 64);
    return r;
}
inline Emulated512 emulated_set1(float x) {
    return floats_by([=](int) { return x; });
}
inline Emulated512 emulated_set1(int x) {
    return ints_by([=](int) { return x; });
}
inline Emulated512 emulated_set1_epi8(char x) {
    Emulated512 r;
    std::memset(&r, x, 64);
    return r;
}
template <class To>
inline Emulated512 emulated_widen(const void* v) {
    return ints_by([=](int n) { return static_cast<const To*>(v)[n]; });
}
inline Emulated512 emulated_cvtph_ps(__m256i v) {
    Emulated512 r;
    _mm256_storeu_ps(r.f, _mm256_cvtph_ps(_mm256_castsi256_si128(v)));
    _mm256_storeu_ps(r.f + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
    return r;
}
inline Emulated512 emulated_broadcast_i32x4(__m128i v) {
    return ints_by([&](int n) { return lane_of<int32_t>(v, n % 4); });
}
#define _mm512_loadu_ps emulated_load
#define _mm512_loadu_si512 emulated_load
#define _mm512_set1_ps emulated_set1
#define _mm512_set1_epi32 emulated_set1
#define _mm512_set1_epi8 emulated_set1_epi8
#define _mm512_setzero_ps() emulated_set1(0)
#define _mm512_setzero_si512() emulated_set1(0)
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_cvtepu8_epi32(v) emulated_widen<uint8_t>(&static_cast<const __m128i&>(v))
#define _mm512_cvtepi8_epi32(v) emulated_widen<int8_t>(&static_cast<const __m128i&>(v))
#define _mm512_cvtepu16_epi32(v) emulated_widen<uint16_t>(&static_cast<const __m256i&>(v))
#define _mm512_broadcast_i32x4 emulated_broadcast_i32x4

#define EMULATE_FLOATS(name, expression)                                                                                         \
    inline Emulated512 name(const Emulated512& a, const Emulated512& b) {                                                        \
        return floats_by([&](int n) { return expression; });                                                                     \
    }
#define EMULATE_INTS(name, expression)                                                                                           \
    inline Emulated512 name(const Emulated512& a, const Emulated512& b) {                                                        \
        return ints_by([&](int n) { return expression; });                                                                       \
    }
EMULATE_FLOATS(_mm512_add_ps, a.f[n] + b.f[n])
EMULATE_FLOATS(_mm512_sub_ps, a.f[n] - b.f[n])
EMULATE_FLOATS(_mm512_mul_ps, a.f[n] * b.f[n])
EMULATE_FLOATS(_mm512_div_ps, a.f[n] / b.f[n])
EMULATE_FLOATS(_mm512_max_ps, a.f[n] > b.f[n] ? a.f[n] : b.f[n])
EMULATE_FLOATS(_mm512_min_ps, a.f[n] < b.f[n] ? a.f[n] : b.f[n])
EMULATE_INTS(_mm512_add_epi32, static_cast<uint32_t>(a.i[n]) + static_cast<uint32_t>(b.i[n]))
EMULATE_INTS(_mm512_and_epi32, a.i[n] & b.i[n])
EMULATE_INTS(_mm512_or_epi32, a.i[n] | b.i[n])
EMULATE_INTS(_mm512_and_si512, a.i[n] & b.i[n])
EMULATE_INTS(_mm512_or_si512, a.i[n] | b.i[n])
EMULATE_INTS(_mm512_xor_si512, a.i[n] ^ b.i[n])

inline Emulated512 _mm512_fmadd_ps(const Emulated512& a, const Emulated512& b, const Emulated512& c) {
    return floats_by([&](int n) { return std::fma(a.f[n], b.f[n], c.f[n]); });
}
inline Emulated512 _mm512_cvtepi32_ps(const Emulated512& a) {
    return floats_by([&](int n) { return static_cast<float>(a.i[n]); });
}
inline Emulated512 _mm512_dpbusd_epi32(const Emulated512& sum, const Emulated512& u, const Emulated512& s) {
    return ints_by([&](int n) {
        int32_t total = sum.i[n];
        for (int k = n * 4; k < n * 4 + 4; k++) total += u.b[k] * static_cast<int8_t>(s.b[k]);
        return total;
    });
}
inline Emulated512 _mm512_shuffle_epi8(const Emulated512& table, const Emulated512& index) {
    Emulated512 r;
    for (int n = 0; n < 64; n++) r.b[n] = index.b[n] & 0x80 ? 0 : table.b[n / 16 * 16 + index.b[n] % 16];
    return r;
}
inline Emulated512 _mm512_slli_epi16(Emulated512 a, unsigned n) {
    for (uint16_t& x : a.h) x = static_cast<uint16_t>(x << n);
    return a;
}
inline Emulated512 _mm512_srli_epi16(Emulated512 a, unsigned n) {
    for (uint16_t& x : a.h) x = static_cast<uint16_t>(x >> n);
    return a;
}
inline Emulated512 _mm512_slli_epi32(const Emulated512& a, unsigned count) {
    return ints_by([&](int n) { return static_cast<uint32_t>(a.i[n]) << count; });
}
inline Emulated512 _mm512_srai_epi32(const Emulated512& a, unsigned count) {
    return ints_by([&](int n) { return a.i[n] >> count; });
}
inline Emulated512 _mm512_castps_si512(const Emulated512& a) { return a; }
inline Emulated512 _mm512_castsi512_ps(const Emulated512& a) { return a; }
inline __m256 _mm512_castps512_ps256(const Emulated512& a) { return _mm256_loadu_ps(a.f); }
template <class F>
inline void emulated_store(void* p, const F& v) {
    std::memcpy(p, &v, 64);
}
#define _mm512_storeu_ps emulated_store
#define _mm512_storeu_si512 emulated_store
#define _mm512_extractf32x8_ps(v, half) _mm256_loadu_ps((v).f + (half) * 8)
#define _mm512_cvtps_ph(v, rounding)                                                                                             \
    _mm256_set_m128i(_mm256_cvtps_ph(_mm256_loadu_ps((v).f + 8), rounding), _mm256_cvtps_ph(_mm256_loadu_ps((v).f), rounding))
inline __mmask16 emulated_compare(const Emulated512& a, const Emulated512& b, int predicate) {
    __mmask16 mask = 0;
    for (int n = 0; n < 16; n++) {
        const bool yes = predicate == _CMP_GT_OQ   ? a.f[n] > b.f[n]
                         : predicate == _CMP_GE_OQ ? a.f[n] >= b.f[n]
                                                   : a.f[n] == b.f[n];
        mask = static_cast<__mmask16>(mask | (yes ? 1 : 0) << n);
    }
    return mask;
}
#define _mm512_cmp_ps_mask emulated_compare
inline Emulated512 _mm512_mask_blend_ps(__mmask16 mask, const Emulated512& no, const Emulated512& yes) {
    return floats_by([&](int n) { return mask >> n & 1 ? yes.f[n] : no.f[n]; });
}
