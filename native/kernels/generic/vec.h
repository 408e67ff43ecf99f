// Sixteen float lanes in plain C++. Same operations in the same order as every other level.
#pragma once
#include "kernels/half.h"
#include <bit>
#include <cmath>
#include <cstdint>

#define TUILI_ISA generic

namespace tuili::generic {

inline constexpr int kLanes = 16;
// Register tile of the float matrix kernels: rows × vectors of 16 lanes that fit the register file.
inline constexpr int kTileRowsMax = 4;

struct Vec16 {
    float v[16];
};
struct Mask16 {
    uint32_t m;
};

template <class F>
inline Vec16 map(F f) {
    Vec16 r;
    for (int i = 0; i < 16; i++) r.v[i] = f(i);
    return r;
}
template <class F>
inline Mask16 test(F f) {
    uint32_t m = 0;
    for (int i = 0; i < 16; i++) m |= static_cast<uint32_t>(f(i) ? 1 : 0) << i;
    return {m};
}

inline Vec16 load(const float* p) {
    return map([&](int i) { return p[i]; });
}
inline void store(float* p, const Vec16& v) {
    for (int i = 0; i < 16; i++) p[i] = v.v[i];
}
inline Vec16 set1(float x) {
    return map([&](int) { return x; });
}
inline Vec16 zero() { return set1(0.0f); }

inline Vec16 operator+(const Vec16& a, const Vec16& b) {
    return map([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec16 operator-(const Vec16& a, const Vec16& b) {
    return map([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec16 operator*(const Vec16& a, const Vec16& b) {
    return map([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec16 operator/(const Vec16& a, const Vec16& b) {
    return map([&](int i) { return a.v[i] / b.v[i]; });
}

// a * b + c, rounded once.
inline Vec16 fma(const Vec16& a, const Vec16& b, const Vec16& c) {
    return map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}

// The larger (smaller) lane; b where either is NaN. So clamp with the constant first to keep NaN.
inline Vec16 vmax(const Vec16& a, const Vec16& b) {
    return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec16 vmin(const Vec16& a, const Vec16& b) {
    return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}

inline Mask16 greater(const Vec16& a, const Vec16& b) {
    return test([&](int i) { return a.v[i] > b.v[i]; });
}
inline Mask16 greater_equal(const Vec16& a, const Vec16& b) {
    return test([&](int i) { return a.v[i] >= b.v[i]; });
}
inline Mask16 equal(const Vec16& a, const Vec16& b) {
    return test([&](int i) { return a.v[i] == b.v[i]; });
}
// Lanes [first, last).
inline Mask16 lanes(int first, int last) {
    return test([&](int i) { return i >= first && i < last; });
}
inline Vec16 select(Mask16 m, const Vec16& yes, const Vec16& no) {
    return map([&](int i) { return (m.m >> i & 1u) ? yes.v[i] : no.v[i]; });
}
// Bit i is lane i.
inline uint32_t bits(Mask16 m) { return m.m; }

inline Vec16 absolute(const Vec16& x) {
    return map([&](int i) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x.v[i]) & 0x7fffffffu); });
}
// Magnitude of x, sign of s.
inline Vec16 copy_sign(const Vec16& x, const Vec16& s) {
    return map([&](int i) {
        return std::bit_cast<float>((std::bit_cast<uint32_t>(x.v[i]) & 0x7fffffffu) |
                                    (std::bit_cast<uint32_t>(s.v[i]) & 0x80000000u));
    });
}
// (bits(x) << 23) + 0x3f800000: 2^n, when x holds n + 1.5 * 2^23.
inline Vec16 pow2_from_magic(const Vec16& x) {
    return map([&](int i) { return std::bit_cast<float>((std::bit_cast<uint32_t>(x.v[i]) << 23) + 0x3f800000u); });
}

// Always the same tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
inline float reduce_add(Vec16 v) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v.v[i] = v.v[i] + v.v[i + half];
    return v.v[0];
}
inline float reduce_max(Vec16 v) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v.v[i] = v.v[i] > v.v[i + half] ? v.v[i] : v.v[i + half];
    return v.v[0];
}

inline Vec16 load_f16(const uint16_t* p) {
    return map([&](int i) { return half_to_float(p[i]); });
}
inline void store_f16(uint16_t* p, const Vec16& v) {
    for (int i = 0; i < 16; i++) p[i] = float_to_half(v.v[i]);
}
inline void prefetch(const void*) {}

} // namespace tuili::generic
