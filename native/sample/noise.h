// The random numbers of sampling: counter-based, so that a token's noise depends on (seed, sequence, position, token id) alone.
//
//   key   = mix64(mix64(seed + G) ^ (uint64(uint32(sequence)) << 32 | uint32(position)))       G = 0x9e3779b97f4a7c15
//   h     = mix32(mix32(token ^ uint32(key)) ^ uint32(key >> 32))
//   v     = (float32(h >> 1) + 0.5) * 2^-31, at most 1 - 2^-24                                   uniform in (0, 1)
//   noise = -log(-log1p(-v))   in double                                                          standard Gumbel
//
// (Static, so that every object keeps its own copy.) mix64 is splitmix64's finaliser, mix32 is MurmurHash3's. argmax(logit /
// temperature + noise) is then a draw from the softmax.
#pragma once
#include <cmath>
#include <cstdint>

namespace tuili {

[[maybe_unused]] static inline uint64_t mix64(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

[[maybe_unused]] static inline uint64_t noise_key(uint64_t seed, int32_t sequence, int32_t position) {
    const uint64_t counter = static_cast<uint64_t>(static_cast<uint32_t>(sequence)) << 32 | static_cast<uint32_t>(position);
    return mix64(mix64(seed + 0x9e3779b97f4a7c15u) ^ counter);
}

[[maybe_unused]] static inline uint32_t mix32(uint32_t h) {
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

// Uniform in (0, 1).
[[maybe_unused]] static inline float noise_uniform(uint64_t key, uint32_t token) {
    const uint32_t h = mix32(mix32(token ^ static_cast<uint32_t>(key)) ^ static_cast<uint32_t>(key >> 32));
    const float v = (static_cast<float>(static_cast<int32_t>(h >> 1)) + 0.5f) * 4.656612873077393e-10f;
    return v < 0.99999994f ? v : 0.99999994f;
}

[[maybe_unused]] static inline double gumbel_noise(uint64_t key, uint32_t token) {
    return -std::log(-std::log1p(-static_cast<double>(noise_uniform(key, token))));
}

} // namespace tuili
