// 64 weight bytes (16 output rows, 4 columns each) and their dot products with 4 activations, plain C++.
#pragma once
#include "kernels/generic/vec.h"
#include "kernels/inline.h"
#include <cstring>

#undef TUILI_UNROLL // there are no registers to name: loops stay loops
#define TUILI_UNROLL TUILI_KEEP_LOOP

namespace tuili::generic {

// Rows that the direct kernel takes at once.
inline constexpr int kDirectStep = 2;

template <int M, int kLines>
TUILI_INLINE void prefetch_stream(const uint8_t*) {}
TUILI_INLINE void prefetch_later(const uint8_t*) {}

struct Bytes {
    uint8_t b[64];
};

template <class F>
TUILI_INLINE Bytes map_bytes(F f) {
    Bytes r;
    TUILI_KEEP_LOOP for (int i = 0; i < 64; i++) r.b[i] = static_cast<uint8_t>(f(i));
    return r;
}

TUILI_INLINE Bytes load_bytes(const uint8_t* p) {
    Bytes r;
    std::memcpy(r.b, p, 64);
    return r;
}
TUILI_INLINE void store_bytes(uint8_t* p, const Bytes& v) { std::memcpy(p, v.b, 64); }
TUILI_INLINE Bytes operator&(const Bytes& v, int mask) {
    return map_bytes([&](int i) { return v.b[i] & mask; });
}
TUILI_INLINE Bytes operator|(const Bytes& x, const Bytes& y) {
    return map_bytes([&](int i) { return x.b[i] | y.b[i]; });
}
// Within bytes, where the vector levels shift 16-bit lanes: equal after the mask that follows.
TUILI_INLINE Bytes shift_left(const Bytes& v, int n) {
    return map_bytes([&](int i) { return v.b[i] << n; });
}
TUILI_INLINE Bytes shift_right(const Bytes& v, int n) {
    return map_bytes([&](int i) { return v.b[i] >> n; });
}
// table[v], for bytes below 16.
TUILI_INLINE Bytes look_up(const int8_t* table, const Bytes& v) {
    return map_bytes([&](int i) { return table[v.b[i]]; });
}

// Sixteen small integers as floats.
TUILI_INLINE Vec16 floats_of(const uint8_t* p) {
    return map([&](int i) { return static_cast<float>(p[i]); });
}
TUILI_INLINE Vec16 floats_of(const int8_t* p) {
    return map([&](int i) { return static_cast<float>(p[i]); });
}
TUILI_INLINE Vec16 floats_of_bf16(const uint16_t* p) {
    return map([&](int i) { return std::bit_cast<float>(static_cast<uint32_t>(p[i]) << 16); });
}

} // namespace tuili::generic

#include "kernels/linear_panel.h" // needs Bytes

namespace tuili::generic {

// What ActBlock's offsets hold: here the sum.
TUILI_INLINE int32_t start_word(int32_t even, int32_t odd) { return even + odd; }

// The integer sum of one scale block of kSteps * 4 columns. Weights are bytes 0 .. kRange with kOffset still to be taken off, or
// signed bytes where kRange is 128. `offset` points to -unit * (sum of the block's activations), unit being 16 for 32 columns, 32
// for 16.
template <int kRange, int kSteps, int kOffset>
struct Dot : PlainPanel<kSteps> {
    static constexpr int kUnit = kSteps == 8 ? 16 : 32;
    static constexpr int kRows = 2;       // of the panel kernel
    static constexpr int kDirectRows = 2; // up to so many rows a tile is decoded row by row instead of expanded
    int32_t sum[16];

    TUILI_INLINE void start(const int32_t* offset, const uint8_t*) {
        const int32_t first = kOffset == 0 ? 0 : *offset / kUnit * kOffset;
        TUILI_KEEP_LOOP for (int r = 0; r < 16; r++) sum[r] = first;
    }

    TUILI_INLINE void add(const Bytes& w, const int8_t* a, int) {
        TUILI_KEEP_LOOP for (int r = 0; r < 16; r++) TUILI_KEEP_LOOP for (int i = 0; i < 4; i++) {
            const uint8_t byte = w.b[r * 4 + i];
            sum[r] += (kRange == 128 ? static_cast<int8_t>(byte) : static_cast<int>(byte)) * a[i];
        }
    }

    // float(sum) * scale
    TUILI_INLINE Vec16 result(float scale) const {
        return map([&](int r) { return static_cast<float>(sum[r]) * scale; });
    }
};

// The largest |x| of 32 floats, as its bits (so that NaN > infinity > every number).
TUILI_INLINE int32_t max_magnitude(const float* x) {
    int32_t largest = 0;
    TUILI_KEEP_LOOP for (int i = 0; i < 32; i++) {
        const int32_t magnitude = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
        if (magnitude > largest) largest = magnitude;
    }
    return largest;
}

// Sums of 16 columns: of every first and second of four, and of every third and fourth.
struct PairSums {
    int32_t even, odd;
};

// q = round(x * inverse) of 32 columns, to nearest even; sums of each half.
TUILI_INLINE void quantise_block(const float* x, float inverse, int8_t* q, PairSums (&sums)[2]) {
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    sums[0] = sums[1] = {0, 0};
    TUILI_KEEP_LOOP for (int i = 0; i < 32; i++) {
        const int32_t v = static_cast<int32_t>((x[i] * inverse + magic) - magic);
        q[i] = static_cast<int8_t>(v);
        (i % 4 < 2 ? sums[i / 16].even : sums[i / 16].odd) += v;
    }
}

} // namespace tuili::generic
