// Scans over a row of logits, over Vec16. Include after one level's vec.h.
#pragma once
#include "kernels/ops.h"
#include "kernels/row_ops.h"
#include "sample/noise.h"
#include <bit>
#include <limits>

namespace tuili::TUILI_ISA {

inline RowMaximum row_maximum(const float* x, int64_t n) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    Vec16 top = set1(kLowest);
    uint32_t valid = 0xffff;
    const Vec16 infinity = set1(-kLowest);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const Vec16 v = load(x + i);
        valid &= bits(greater(infinity, v)); // false for NaN too
        top = vmax(v, top);
    }
    float largest = reduce_max(top);
    for (; i < n; i++) {
        if (!(x[i] < -kLowest)) valid = 0;
        largest = x[i] > largest ? x[i] : largest;
    }
    if (valid != 0xffff) return {largest, -1, true};
    for (i = 0; i + 16 <= n; i += 16)
        if (const uint32_t hits = bits(equal(load(x + i), set1(largest))))
            return {largest, static_cast<int32_t>(i + std::countr_zero(hits)), false};
    while (i < n && x[i] != largest) i++;
    return {largest, static_cast<int32_t>(i), false};
}

inline double sum_exp(const float* x, int64_t n, float maximum, float factor) {
    // Float sums over stretches, one a lane, then double: precise and quick. The stretches are at fixed columns.
    constexpr int64_t kStretch = 4096;
    const Vec16 m = set1(maximum), f = set1(factor);
    double total = 0;
    for (int64_t i = 0; i < n; i += kStretch) {
        const int64_t count = n - i < kStretch ? n - i : kStretch;
        total += static_cast<double>(
            sum_row(x + i, count, [&](Vec16 s, Vec16 v, Mask16 valid) { return s + select(valid, exp((v - m) * f), zero()); }));
    }
    return total;
}

inline void mass_by_distance(const float* x, int64_t n, float maximum, float factor, double* mass) {
    const Vec16 m = set1(maximum), f = set1(factor);
    for (int64_t i = 0; i < n; i += 16) {
        const int64_t count = n - i < 16 ? n - i : 16;
        const Vec16 distance = (m - (count == 16 ? load(x + i) : load_first(x + i, count))) * f;
        float distances[16], masses[16];
        store(distances, distance);
        store(masses, exp(zero() - distance));
        for (int64_t j = 0; j < count; j++) mass[mass_bin(distances[j])] += static_cast<double>(masses[j]);
    }
}

inline void run_maxima(const float* x, int64_t n, int64_t run, float* out) {
    for (int64_t r = 0; r < n; r += run, out++) {
        const int64_t end = n - r < run ? n : r + run;
        Vec16 top = set1(-std::numeric_limits<float>::infinity());
        int64_t i = r;
        for (; i + 16 <= end; i += 16) top = vmax(load(x + i), top);
        float largest = reduce_max(top);
        for (; i < end; i++) largest = x[i] > largest ? x[i] : largest;
        *out = largest;
    }
}

inline int64_t find_at_least(const float* x, int64_t n, float threshold, int32_t* ids) {
    int64_t count = 0, i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t hits = bits(greater_equal(load(x + i), set1(threshold))); hits; hits &= hits - 1)
            ids[count++] = static_cast<int32_t>(i + std::countr_zero(hits));
    for (; i < n; i++)
        if (x[i] >= threshold) ids[count++] = static_cast<int32_t>(i);
    return count;
}

// An upper bound of the noise without a logarithm: -log(-log1p(-v)) <= -log v <= -exponent(v) log 2.
inline void noise_bounds(uint64_t key, int64_t first, float* bound) {
    for (int j = 0; j < 16; j++) {
        const uint32_t u = std::bit_cast<uint32_t>(noise_uniform(key, static_cast<uint32_t>(first + j)));
        bound[j] = static_cast<float>(127 - static_cast<int32_t>(u >> 23)) * 0.6931472f;
    }
}

inline int64_t find_noisy(const float* x, int64_t n, float maximum, float factor, double floor, uint64_t key, int64_t& first,
                          int32_t* ids, int64_t capacity) {
    // Everything is rounded so that no token is missed: a smaller factor makes (x - maximum) * factor, which is negative, larger.
    const Vec16 m = set1(maximum), f = set1(factor * 0.999999f), least = set1(static_cast<float>(floor) - 1e-3f);
    int64_t count = 0, i = first;
    for (; i < n && count + 16 <= capacity; i += 16) {
        float bound[16];
        noise_bounds(key, i, bound);
        const int64_t left = n - i;
        const Vec16 v = left >= 16 ? load(x + i) : load_first(x + i, left);
        const uint32_t valid = left >= 16 ? 0xffffu : (1u << left) - 1;
        for (uint32_t hits = bits(greater(fma(v - m, f, load(bound)), least)) & valid; hits; hits &= hits - 1)
            ids[count++] = static_cast<int32_t>(i + std::countr_zero(hits));
    }
    first = i;
    return count;
}

} // namespace tuili::TUILI_ISA
