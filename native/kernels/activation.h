// Elementary functions over 16 lanes, written once over Vec16: every ISA level gives the same bits.
//
// Include after one level's vec.h. Relative errors are a few units in the last place.
#pragma once
#include "kernels/linear.h"

namespace tuili::TUILI_ISA {

// e^x: x = n ln2 + r with |r| <= ln2 / 2, a degree-6 polynomial for e^r, then 2^n. Below e^-87.3 the result stays at 2^-126,
// above e^88 at e^88. NaN stays NaN.
inline Vec16 exp(Vec16 x) {
    x = vmin(set1(88.0f), vmax(set1(-87.3f), x));
    const Vec16 magic = set1(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer and leaves that in the low bits
    const Vec16 shifted = fma(x, set1(1.44269504088896341f), magic);
    const Vec16 n = shifted - magic;
    Vec16 r = fma(n, set1(-0.693359375f), x); // ln2 in two parts, the first exact in few bits
    r = fma(n, set1(2.12194440054690583e-4f), r);
    Vec16 p = set1(1.3888889e-3f);
    p = fma(p, r, set1(8.3333333e-3f));
    p = fma(p, r, set1(4.1666667e-2f));
    p = fma(p, r, set1(1.6666667e-1f));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return p * pow2_from_magic(shifted);
}

// 2^x for x <= 0; below -126 the result stays at 2^-126. NaN stays NaN.
inline Vec16 exp2_negative(Vec16 x) {
    x = vmax(set1(-126.0f), x);
    const Vec16 magic = set1(12582912.0f);
    const Vec16 shifted = x + magic;
    const Vec16 f = x - (shifted - magic);
    Vec16 p = set1(1.535336188e-4f);
    p = fma(p, f, set1(1.339887440e-3f));
    p = fma(p, f, set1(9.618437357e-3f));
    p = fma(p, f, set1(5.550332548e-2f));
    p = fma(p, f, set1(2.402264791e-1f));
    p = fma(p, f, set1(6.931472028e-1f));
    p = fma(p, f, set1(1.0f));
    return p * pow2_from_magic(shifted);
}

// tanh x: an odd polynomial near zero (coefficients of Cephes' tanhf), 1 - 2 / (e^2|x| + 1) elsewhere.
inline Vec16 tanh(Vec16 x) {
    const Vec16 a = absolute(x), z = x * x;
    Vec16 p = set1(-5.70498872745e-3f);
    p = fma(p, z, set1(2.06390887954e-2f));
    p = fma(p, z, set1(-5.37397155531e-2f));
    p = fma(p, z, set1(1.33314422036e-1f));
    p = fma(p, z, set1(-3.33332819422e-1f));
    const Vec16 small = fma(p * z, x, x);
    const Vec16 large = set1(1.0f) - set1(2.0f) / (exp(a + a) + set1(1.0f));
    return select(greater(a, set1(0.625f)), copy_sign(large, x), small);
}

// erf x = x P(x^2) / Q(x^2) on [-4, 4], where it reaches +-1 in single precision (minimax coefficients as used by Eigen).
inline Vec16 erf(Vec16 x) {
    x = vmin(set1(4.0f), vmax(set1(-4.0f), x));
    const Vec16 z = x * x;
    Vec16 p = set1(-2.72614225801306e-10f);
    p = fma(p, z, set1(2.77068142495902e-08f));
    p = fma(p, z, set1(-2.10102402082508e-06f));
    p = fma(p, z, set1(-5.69250639462346e-05f));
    p = fma(p, z, set1(-7.34990630326855e-04f));
    p = fma(p, z, set1(-2.95459980854025e-03f));
    p = fma(p, z, set1(-1.60960333262415e-02f));
    Vec16 q = set1(-1.45660718464996e-05f);
    q = fma(q, z, set1(-2.13374055278905e-04f));
    q = fma(q, z, set1(-1.68282697438203e-03f));
    q = fma(q, z, set1(-7.37332916720468e-03f));
    q = fma(q, z, set1(-1.42647390514189e-02f));
    return x * p / q;
}

inline Vec16 silu(Vec16 x) { return x / (set1(1.0f) + exp(zero() - x)); }

inline Vec16 gelu_tanh(Vec16 x) {
    const Vec16 inner = set1(0.7978845608028654f) * fma(set1(0.044715f) * x, x * x, x);
    return set1(0.5f) * x * (set1(1.0f) + tanh(inner));
}

inline Vec16 gelu(Vec16 x) { return set1(0.5f) * x * (set1(1.0f) + erf(x * set1(0.70710678118654752f))); }

template <Act act>
inline Vec16 activate(Vec16 x) {
    if constexpr (act == Act::silu) return silu(x);
    if constexpr (act == Act::gelu_tanh) return gelu_tanh(x);
    if constexpr (act == Act::gelu) return gelu(x);
}

} // namespace tuili::TUILI_ISA
