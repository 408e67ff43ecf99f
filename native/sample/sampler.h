// Choosing tokens: one row of logits at a time, so that a row's result depends on nothing but the row and its parameters.
//
// In order: log-probabilities of the raw logits; the mask; bias; the allowed list; repetition, presence and frequency penalties;
// then greedy (temperature 0 or top_p 0: the lowest id among the largest), or: divide by the temperature, keep the top_k
// likeliest, then the fewest of those that reach top_p of their probability, then those with at least min_p of the likeliest
// one's probability, and draw by Gumbel-max with the noise of sample/noise.h. Candidates are ordered by logit, the lower id first
// among equals.
#pragma once
#include "kernels/ops.h"
#include <cstdint>

namespace tuili {

// See SamplingBatch of the Python side. CSR lists: entries of row r are [start[r], start[r + 1]).
struct SamplingBatch {
    const float *temperature, *top_p, *min_p, *repetition_penalty, *presence_penalty, *frequency_penalty;
    const int32_t* top_k;
    const uint64_t* seed;
    const int32_t *sequence, *position, *num_logprobs, *target;
    const int32_t *bias_start, *bias_ids;
    const float* bias_values;
    const int32_t *penalty_start, *penalty_ids, *penalty_counts;
    const int32_t *allowed_start, *allowed_ids;
    const int32_t* mask_index;
    const uint32_t* masks; // [num_masks, mask_words]
    int64_t num_masks, mask_words;
};

// [rows] and [rows, max_logprobs]. A row whose logits hold NaN or +infinity, or that has every token banned, gets token -1.
struct SamplingResult {
    int32_t* token_ids;
    float* logprobs;
    int32_t* top_ids;
    float* top_logprobs;
    int64_t max_logprobs;
};

// Throws std::invalid_argument for an id outside the vocabulary or a list that runs backwards.
void check(const SamplingBatch& batch, int64_t num_rows, int64_t vocab_size);

// `maximum`: of the row, as kernels.row_maximum finds it. Logits may be changed on the way.
void sample_row(const OpKernels& kernels, float* logits, int64_t vocab_size, const RowMaximum& maximum,
                const SamplingBatch& batch, int64_t row, const SamplingResult& result);

} // namespace tuili
