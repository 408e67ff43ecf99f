#include "kernels/probe.h"
#include "kernels/inline.h"
#include <immintrin.h>

namespace tuili {

namespace {

// Enough sums in flight to hide the latency of the instruction; with the operands they fit the registers.
constexpr int kSums = 12;

// Software prefetch only costs here (Zen 3: 15 GB/s a core instead of 20): nothing but loads is in the way of the hardware's.
uint64_t read(const uint8_t* p, size_t n) {
    __m256i sums[4] = {};
    for (const uint8_t* end = p + n; p < end; p += 256) TUILI_UNROLL for (int i = 0; i < 8; i++) {
            const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i * 32));
            sums[i % 4] = _mm256_or_si256(sums[i % 4], v);
        }
    const __m256i all = _mm256_or_si256(_mm256_or_si256(sums[0], sums[1]), _mm256_or_si256(sums[2], sums[3]));
    return static_cast<uint64_t>(_mm256_extract_epi64(all, 0) ^ _mm256_extract_epi64(all, 3));
}

// u8 * s8 in pairs, added up in 16 bits: the inner loop of every integer kernel. (Assembly, or the compiler takes the product,
// always the same, out of the loop.)
int64_t int8_operations(int64_t rounds, float* sink) {
    __m256i sums[kSums] = {}, product;
    const __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(-5);
    for (int64_t r = 0; r < rounds; r++)
        TUILI_UNROLL for (__m256i& sum : sums) asm volatile("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(sum),
                                                            "=&x"(product) : "x"(x), "x"(w));
    TUILI_UNROLL for (int i = 1; i < kSums; i++) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
    *sink = static_cast<float>(_mm256_extract_epi32(sums[0], 0));
    return rounds * kSums * 32 * 2;
}

int64_t fp32_operations(int64_t rounds, float* sink) {
    __m256 sums[kSums] = {};
    const __m256 w = _mm256_set1_ps(0.5f), x = _mm256_set1_ps(0.25f);
    for (int64_t r = 0; r < rounds; r++)
        TUILI_UNROLL for (__m256& sum : sums) asm volatile("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(x), "x"(w));
    TUILI_UNROLL for (int i = 1; i < kSums; i++) sums[0] = _mm256_add_ps(sums[0], sums[i]);
    *sink = _mm256_cvtss_f32(sums[0]);
    return rounds * kSums * 8 * 2;
}

} // namespace

const ProbeKernels& probe_avx2() {
    static constexpr ProbeKernels table{&read, &int8_operations, &fp32_operations};
    return table;
}

} // namespace tuili
