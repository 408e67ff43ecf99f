// Row-wise kernels over Vec16. Include after one level's vec.h.
#pragma once
#include "kernels/activation.h"
#include <cmath>
#include <cstring>

namespace tuili::TUILI_ISA {

// The first n < 16 lanes from memory, the rest zero.
inline Vec16 load_first(const float* p, int64_t n) {
    float buffer[16] = {};
    std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(float));
    return load(buffer);
}
inline void store_first(float* p, Vec16 v, int64_t n) {
    float buffer[16];
    store(buffer, v);
    std::memcpy(p, buffer, static_cast<size_t>(n) * sizeof(float));
}

// f(out vector) for every vector of inputs; the last one may be partial.
template <class F>
inline void map_row(const float* a, float* out, int64_t n, F f) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, f(load(a + i)));
    if (i < n) store_first(out + i, f(load_first(a + i, n - i)), n - i);
}
template <class F>
inline void map_row(const float* a, const float* b, float* out, int64_t n, F f) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, f(load(a + i), load(b + i)));
    if (i < n) store_first(out + i, f(load_first(a + i, n - i), load_first(b + i, n - i)), n - i);
}

// Sum of f over a row: one partial sum a lane, then the fixed tree.
template <class F>
inline float sum_row(const float* x, int64_t n, F f) {
    Vec16 sum = zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) sum = f(sum, load(x + i), lanes(0, 16));
    if (i < n) sum = f(sum, load_first(x + i, n - i), lanes(0, static_cast<int>(n - i)));
    return reduce_add(sum);
}

inline void rms_norm(const float* x, const float* weight, float* out, int64_t width, int64_t group, float eps) {
    for (int64_t g = 0; g < width; g += group) {
        const float squares = sum_row(x + g, group, [](Vec16 s, Vec16 v, Mask16) { return fma(v, v, s); });
        const Vec16 inverse = set1(1.0f / std::sqrt(squares / static_cast<float>(group) + eps));
        map_row(x + g, weight, out + g, group, [&](Vec16 v, Vec16 w) { return v * inverse * w; });
    }
}

inline void layer_norm(const float* x, const float* scale, const float* shift, float* out, int64_t width, int64_t group,
                       float eps) {
    for (int64_t g = 0; g < width; g += group) {
        const float n = static_cast<float>(group);
        const Vec16 mean = set1(sum_row(x + g, group, [](Vec16 s, Vec16 v, Mask16) { return s + v; }) / n);
        const float squares = sum_row(x + g, group, [&](Vec16 s, Vec16 v, Mask16 valid) {
            const Vec16 d = select(valid, v - mean, zero());
            return fma(d, d, s);
        });
        const Vec16 inverse = set1(1.0f / std::sqrt(squares / n + eps));
        map_row(x + g, scale, out + g, group, [&](Vec16 v, Vec16 w) { return (v - mean) * inverse * w; });
        if (shift) map_row(out + g, shift, out + g, group, [](Vec16 v, Vec16 b) { return v + b; });
    }
}

inline void add(const float* a, const float* b, float* out, int64_t n) {
    map_row(a, b, out, n, [](Vec16 u, Vec16 v) { return u + v; });
}
inline void scale(const float* x, float factor, float* out, int64_t n) {
    map_row(x, out, n, [f = set1(factor)](Vec16 v) { return v * f; });
}
inline void softcap(const float* x, float cap, float* out, int64_t n) {
    map_row(x, out, n, [c = set1(cap)](Vec16 v) { return c * tanh(v / c); });
}

template <Act act>
inline void act_mul_as(const float* gate, const float* up, float* out, int64_t n) {
    map_row(gate, up, out, n, [](Vec16 g, Vec16 u) { return activate<act>(g) * u; });
}
inline void act_mul(Act act, const float* gate, const float* up, float* out, int64_t n) {
    switch (act) {
    case Act::silu:
        return act_mul_as<Act::silu>(gate, up, out, n);
    case Act::gelu_tanh:
        return act_mul_as<Act::gelu_tanh>(gate, up, out, n);
    case Act::gelu:
        return act_mul_as<Act::gelu>(gate, up, out, n);
    }
}

inline void weighted_sum(const float* y, const float* weights, int64_t num, float* out, int64_t n) {
    scale(y, weights[0], out, n);
    for (int64_t j = 1; j < num; j++)
        map_row(y + j * n, out, out, n, [w = set1(weights[j])](Vec16 v, Vec16 sum) { return fma(w, v, sum); });
}

inline void softmax(const float* x, float* out, int64_t n) {
    float maximum = x[0];
    for (int64_t i = 1; i < n; i++) maximum = x[i] > maximum ? x[i] : maximum;
    map_row(x, out, n, [m = set1(maximum)](Vec16 v) { return exp(v - m); });
    const float sum = sum_row(out, n, [](Vec16 s, Vec16 v, Mask16) { return s + v; });
    map_row(out, out, n, [s = set1(sum)](Vec16 v) { return v / s; });
}
inline void sigmoid(const float* x, float* out, int64_t n) {
    map_row(x, out, n, [](Vec16 v) { return set1(1.0f) / (set1(1.0f) + exp(zero() - v)); });
}

inline void rope(const float* x, const float* cos, const float* sin, float* out, int64_t heads, int64_t head_dim, int64_t dim) {
    const int64_t half = dim / 2;
    for (int64_t h = 0; h < heads; h++, x += head_dim, out += head_dim) {
        int64_t i = 0;
        for (; i + 16 <= half; i += 16) {
            const Vec16 a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
            store(out + i, a * c - b * s);
            store(out + half + i, b * c + a * s);
        }
        for (; i < half; i++) {
            const float a = x[i], b = x[half + i];
            out[i] = a * cos[i] - b * sin[i];
            out[half + i] = b * cos[i] + a * sin[i];
        }
        if (dim < head_dim) std::memmove(out + dim, x + dim, static_cast<size_t>(head_dim - dim) * sizeof(float));
    }
}

inline Vec16 saturate_f16(Vec16 v) { return vmin(set1(65504.0f), vmax(set1(-65504.0f), v)); }

inline void write_kv(const float* k, const float* v, uint16_t* k_block, uint16_t* v_block, int offset, int head_dim) {
    for (int d = 0; d < head_dim; d += 16) {
        uint16_t column[16];
        store_f16(column, saturate_f16(load(k + d)));
        for (int i = 0; i < 16; i++) k_block[(d + i) * 16 + offset] = column[i];
        store_f16(v_block + offset * head_dim + d, saturate_f16(load(v + d)));
    }
}

} // namespace tuili::TUILI_ISA
