#include "kernels/probe.h"
#include "kernels/inline.h"
#include <immintrin.h>

namespace tuili {

namespace {

// Enough sums in flight to hide the latency of the instruction.
constexpr int kSums = 12;

// The hardware prefetchers do best alone here, as for the kernels of one row.
uint64_t read(const uint8_t* p, size_t n) {
    __m512i sums[4] = {};
    for (const uint8_t* end = p + n; p < end; p += 512)
        TUILI_UNROLL for (int i = 0; i < 8; i++) sums[i % 4] = _mm512_or_si512(sums[i % 4], _mm512_loadu_si512(p + i * 64));
    const __m512i all = _mm512_or_si512(_mm512_or_si512(sums[0], sums[1]), _mm512_or_si512(sums[2], sums[3]));
    uint64_t parts[8];
    _mm512_storeu_si512(parts, all);
    return parts[0] ^ parts[7];
}

// (Assembly, or the compiler computes with constants.)
int64_t int8_operations(int64_t rounds, float* sink) {
    __m512i sums[kSums] = {};
    const __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(-5);
    for (int64_t r = 0; r < rounds; r++)
        TUILI_UNROLL for (__m512i& sum : sums) asm volatile("vpdpbusd %1, %2, %0" : "+v"(sum) : "v"(x), "v"(w));
    TUILI_UNROLL for (int i = 1; i < kSums; i++) sums[0] = _mm512_xor_si512(sums[0], sums[i]);
    int32_t parts[16];
    _mm512_storeu_si512(parts, sums[0]);
    *sink = static_cast<float>(parts[0]);
    return rounds * kSums * 64 * 2;
}

int64_t fp32_operations(int64_t rounds, float* sink) {
    __m512 sums[kSums] = {};
    const __m512 w = _mm512_set1_ps(0.5f), x = _mm512_set1_ps(0.25f);
    for (int64_t r = 0; r < rounds; r++)
        TUILI_UNROLL for (__m512& sum : sums) asm volatile("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(x), "v"(w));
    TUILI_UNROLL for (int i = 1; i < kSums; i++) sums[0] = _mm512_add_ps(sums[0], sums[i]);
    float parts[16];
    _mm512_storeu_ps(parts, sums[0]);
    *sink = parts[0];
    return rounds * kSums * 16 * 2;
}

} // namespace

const ProbeKernels& probe_avx512() {
    static constexpr ProbeKernels table{&read, &int8_operations, &fp32_operations};
    return table;
}

} // namespace tuili
