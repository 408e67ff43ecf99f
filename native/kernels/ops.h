// The kernels of one ISA level that are not matrix products: row-wise ops, attention, and the scans that sampling needs.
//
// Every result is a fixed sequence of operations of its own row: it does not depend on the other rows, on threads or on the
// level.
#pragma once
#include "kernels/linear.h"
#include <cstdint>

namespace tuili {

inline constexpr int kBlockSize = 16;      // tokens in a KV block
inline constexpr int kAttentionChunk = 64; // tokens between two updates of the running softmax, at absolute positions

// Attention over [0, positions) is computed in segments: [segment_start(s), segment_start(s + 1)). They depend on absolute
// positions alone, so that several threads may share one row's work without changing its bits: short ones first, for short
// contexts, then longer ones, whose sums cost less to keep and to merge.
inline constexpr int64_t segment_start(int64_t s) {
    if (s <= 4) return s * 64;
    return s <= 19 ? (s - 3) * 256 : (s - 15) * 1024;
}
inline constexpr int64_t segment_of(int64_t position) {
    if (position < 256) return position / 64;
    return position < 4096 ? position / 256 + 3 : position / 1024 + 15;
}

// Positions [first, last) of a sequence, last > first, which the calling thread reads next: their first chunk is fetched while
// the last one of a call is computed. `pool` as in AttentionArgs; null: nothing is known.
struct NextPositions {
    const uint16_t* pool;
    const int32_t* block_table;
    int64_t first, last;
};

// Query heads of one KV head, for a run of queries of one sequence: rows are (query, head).
struct AttentionArgs {
    const float* q; // head j of query i at q + i * ldq + j * head_dim
    int64_t ldq;
    float* out; // likewise
    int64_t ldo;
    int num_queries, num_heads; // num_queries * num_heads <= kAttentionRows
    int head_dim;               // a multiple of 16, at most kMaxHeadDim
    int64_t first_position;     // of query 0; the others follow
    int64_t window;             // positions a query sees, itself included; 0 = all
    float scale, softcap;       // softcap 0 = none
    bool causal;                // otherwise every query sees [0, context)
    int64_t context;            // positions of the sequence that are filled
    const int32_t* block_table;
    const uint16_t* pool; // K of block b at pool + b * block_stride: [head_dim][16]; V at + v_offset: [16][head_dim]; f16
    int64_t block_stride; // in uint16
    int64_t v_offset;     // in uint16
    NextPositions next;
    bool unexpected; // no earlier call had these positions as its next ones
    float* scratch;  // kAttentionScratch floats, 64-byte aligned
    float* partials; // of attention_segment and attention_merge: [segments seen][rows][head_dim + kPartialExtra]
};

inline constexpr int kAttentionRows = 32;
inline constexpr int kMaxHeadDim = 512;
inline constexpr int kPartialExtra = 16; // maximum, sum of weights, and padding
inline constexpr int64_t kAttentionScratch = kAttentionRows * (3 * kMaxHeadDim + kAttentionChunk);

// Bins of a sixteenth of a nat below the maximum; the last one takes everything further away.
inline constexpr int kMassBins = 512;
[[maybe_unused]] static inline int mass_bin(float distance) {
    return distance < static_cast<float>(kMassBins - 1) / 16.0f ? static_cast<int>(distance * 16.0f) : kMassBins - 1;
}

// What one scan over a row of logits tells.
struct RowMaximum {
    float value;   // the largest
    int32_t index; // its first position
    bool invalid;  // NaN or +infinity among them
};

struct OpKernels {
    const char* isa;

    // One row each; `width` columns in groups of `group`.
    void (*rms_norm)(const float* x, const float* weight, float* out, int64_t width, int64_t group, float eps);
    void (*layer_norm)(const float* x, const float* scale, const float* shift, float* out, int64_t width, int64_t group,
                       float eps);
    void (*add)(const float* a, const float* b, float* out, int64_t n);
    void (*scale)(const float* x, float factor, float* out, int64_t n);
    void (*softcap)(const float* x, float cap, float* out, int64_t n);
    void (*act_mul)(Act act, const float* gate, const float* up, float* out, int64_t n);
    // out = sum over j of weights[j] * y[j], y being [num, n], in order.
    void (*weighted_sum)(const float* y, const float* weights, int64_t num, float* out, int64_t n);
    void (*softmax)(const float* x, float* out, int64_t n);
    void (*sigmoid)(const float* x, float* out, int64_t n);
    // Rotates the first `dim` columns of every head; cos and sin are [dim / 2].
    void (*rope)(const float* x, const float* cos, const float* sin, float* out, int64_t heads, int64_t head_dim, int64_t dim);
    // One token's K and V of one head into place `offset` of a block, as f16 (saturated to its range).
    void (*write_kv)(const float* k, const float* v, uint16_t* k_block, uint16_t* v_block, int offset, int head_dim);
    void (*attention)(const AttentionArgs& args);
    // The same in pieces: segments in any order, by any thread, then one merge.
    void (*attention_segment)(const AttentionArgs& args, int64_t segment);
    void (*attention_merge)(const AttentionArgs& args);

    RowMaximum (*row_maximum)(const float* x, int64_t n);
    // Sum over i of e^((x[i] - maximum) * factor); factor > 0.
    double (*sum_exp)(const float* x, int64_t n, float maximum, float factor);
    // Adds e^-d to mass[mass_bin(d)] for every d = (maximum - x[i]) * factor; mass is [kMassBins].
    void (*mass_by_distance)(const float* x, int64_t n, float maximum, float factor, double* mass);
    // Largest value of each run of `run` (a multiple of 16; the last may be shorter).
    void (*run_maxima)(const float* x, int64_t n, int64_t run, float* out);
    // Positions with x >= threshold, ascending, into ids (capacity n); returns how many.
    int64_t (*find_at_least)(const float* x, int64_t n, float threshold, int32_t* ids);
    // Positions whose score (x - maximum) * factor + noise may exceed `floor`, at most `capacity` of them from `first` on;
    // returns their number and moves `first` to where the scan stopped.
    int64_t (*find_noisy)(const float* x, int64_t n, float maximum, float factor, double floor, uint64_t noise_key,
                          int64_t& first, int32_t* ids, int64_t capacity);
};

const OpKernels& ops_generic();
const OpKernels& ops_avx2();
const OpKernels& ops_avx512();

} // namespace tuili
