// One step's arrays, as the caller laid them out (see StepInput of the Python side).
#pragma once
#include "program/plan.h"
#include <cstdint>
#include <vector>

namespace tuili {

struct Limits {
    int64_t max_tokens, max_outputs_at_once;
};

struct BlockTable {
    const int32_t* data; // [sequences, stride]
    int64_t stride;
};

struct Step {
    int64_t num_tokens, num_sequences, num_outputs, num_axes;
    const int32_t* token_ids;                 // [num_tokens]
    const int32_t* positions;                 // [num_axes, num_tokens]
    const int32_t* query_start;               // [num_sequences + 1]
    const int32_t* context_lens;              // [num_sequences]
    std::vector<const int32_t*> slot_mapping; // [groups] of [num_tokens]
    std::vector<BlockTable> block_tables;     // [groups]
    const int32_t* logit_rows;                // [num_outputs]
};

// Throws std::invalid_argument when anything in the step would make the executor read or write outside its memory.
void check(const Step& step, const Plan& plan, const Limits& limits);

} // namespace tuili
