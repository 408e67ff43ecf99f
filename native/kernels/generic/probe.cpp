#include "kernels/probe.h"
#include <cmath>
#include <cstring>

namespace tuili {

namespace {

constexpr int kSums = 16;

uint64_t read(const uint8_t* p, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += sizeof sum) {
        uint64_t v;
        std::memcpy(&v, p + i, sizeof v);
        sum |= v;
    }
    return sum;
}

// Sixteen rows, four products each, as the integer kernels of this level: the compiler vectorises what it can.
int64_t int8_operations(int64_t rounds, float* sink) {
    int32_t sums[kSums] = {};
    uint8_t w[kSums * 4];
    int8_t x[4] = {-5, 7, 11, -13};
    std::memset(w, 3, sizeof w);
    for (int64_t r = 0; r < rounds; r++) {
        asm volatile("" : "+m"(w), "+m"(x)); // as if loaded anew
        for (int i = 0; i < kSums; i++)
            for (int k = 0; k < 4; k++) sums[i] += w[i * 4 + k] * x[k];
    }
    for (int i = 1; i < kSums; i++) sums[0] ^= sums[i];
    *sink = static_cast<float>(sums[0]);
    return rounds * kSums * 4 * 2;
}

int64_t fp32_operations(int64_t rounds, float* sink) {
    float sums[kSums] = {}, w[kSums], x = 0.25f;
    for (float& one : w) one = 0.5f;
    for (int64_t r = 0; r < rounds; r++) {
        asm volatile("" : "+m"(w), "+m"(x));
        for (int i = 0; i < kSums; i++) sums[i] = std::fma(w[i], x, sums[i]);
    }
    for (int i = 1; i < kSums; i++) sums[0] += sums[i];
    *sink = sums[0];
    return rounds * kSums * 2;
}

} // namespace

const ProbeKernels& probe_generic() {
    static constexpr ProbeKernels table{&read, &int8_operations, &fp32_operations};
    return table;
}

} // namespace tuili
