// IEEE half precision in plain C++: what F16C does, NaN included. Static, so that every object keeps its own copy.
#pragma once
#include <bit>
#include <cstdint>

namespace tuili {

[[maybe_unused]] static inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) { // infinity, or NaN made quiet
        const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
        return std::bit_cast<float>(sign | 0x7f800000u | quiet | (magnitude & 0x3ffu) << 13);
    }
    if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
    const float subnormal = static_cast<float>(magnitude) * 5.9604644775390625e-8f; // 2^-24
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// To nearest, ties to even.
[[maybe_unused]] static inline uint16_t float_to_half(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    const uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000u);
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { // subnormal: adding 0.5 puts its last bit at 2^-24, and rounds
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

} // namespace tuili
