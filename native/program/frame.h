// What the ops of one step (or of one piece of its output rows) read and write.
#pragma once
#include "program/isa.h"
#include "program/memory.h"
#include "program/plan.h"
#include "program/step.h"
#include "threads/pool.h"
#include <vector>

namespace tuili {

// Rows of each expert, in ascending order: rows [start[e], start[e + 1]) of `slots` (row of the routing value: token * top_k + j)
// and `tokens` (slot / top_k).
struct ExpertRows {
    std::vector<int32_t> start, slots, tokens;
};

// Memory that lasts as long as the executor.
struct Workspace {
    Buffer token_arena, output_arena, activations;
    std::vector<Buffer> thread_scratch;
    std::vector<Buffer> kv_pools;       // one a state group
    std::vector<Buffer> cosines, sines; // one a rope table: [tokens, dim / 2]
    ExpertRows experts;
    std::vector<float> attention_partials;
};

struct Frame {
    const Plan& plan;
    const Kernels& kernels;
    ThreadPool& pool;
    Workspace& work;
    const Step& step;
    int64_t first_output = 0, num_outputs = 0; // the piece of output rows in work
    float* output = nullptr;                   // where the program's output goes, if not into the arena

    const Value& value(ValueId id) const { return plan.values[static_cast<size_t>(id)]; }

    // Rows of that kind: tokens of the step, or outputs of the piece.
    int64_t units(const Value& v) const { return v.per_output ? num_outputs : step.num_tokens; }
    int64_t rows(ValueId id) const { return units(value(id)) * value(id).multiple; }

    float* data(ValueId id) const {
        if (output && id == plan.output) return output;
        const Value& v = value(id);
        return (v.per_output ? work.output_arena : work.token_arena).as<float>() + v.offset * units(v);
    }
    // The (first) row of unit i.
    float* row(ValueId id, int64_t i) const { return data(id) + i * value(id).multiple * value(id).width; }

    const float* vector(VectorId id) const { return id == kNone ? nullptr : plan.vectors[static_cast<size_t>(id)].data(); }
    const Weight& weight(WeightId id) const { return plan.weights[static_cast<size_t>(id)]; }
    // Expert ids of a routing value lie behind its weights.
    int32_t* expert_ids(ValueId routing) const {
        return reinterpret_cast<int32_t*>(data(routing) + rows(routing) * value(routing).width);
    }
};

// Row ops of a group for units [first, last).
void run_rows(const RowGroup& group, const Frame& frame, int64_t first, int64_t last);

void run(const RowGroup& group, const Frame& frame);
void run(const op::Linear& op, const Frame& frame);
void run(const op::GateUpAct& op, const Frame& frame);
void run(const op::GroupExperts& op, const Frame& frame);
void run(const op::MoeLinear& op, const Frame& frame);
void run(const op::Attention& op, const Frame& frame);

} // namespace tuili
