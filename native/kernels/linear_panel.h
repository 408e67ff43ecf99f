// How a panel keeps the weights of a scale block: step by step, as bytes. A level's Dot may keep another form that is quicker to
// multiply. Included by each level's bytes.h.
#pragma once

namespace tuili::TUILI_ISA {

template <int kSteps>
struct PlainPanel {
    static constexpr int64_t kExpandedBytes = kSteps * 64;
    using Step = Bytes;
    static TUILI_INLINE void expand(const Bytes (&w)[kSteps], uint8_t* to) {
        TUILI_UNROLL for (int s = 0; s < kSteps; s++) store_bytes(to + s * 64, w[s]);
    }
    static TUILI_INLINE Step step(const uint8_t* expanded, int s) { return load_bytes(expanded + s * 64); }
};

} // namespace tuili::TUILI_ISA
