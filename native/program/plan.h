// A program made ready to run: flat arrays of values, weights and phases. Made once at load, then only read.
//
// A phase is what lies between two barriers of the thread pool: either one matrix or attention op, whose output columns are
// shared out, or a group of row ops, each row of which is taken through all of them by one thread.
#pragma once
#include "kernels/linear.h"
#include <cstdint>
#include <deque>
#include <variant>
#include <vector>

namespace tuili {

using ValueId = int32_t;
using WeightId = int32_t;
using VectorId = int32_t; // kNone where there is none
using TableId = int32_t;
inline constexpr int32_t kNone = -1;

// A float matrix [rows, width]: rows is `multiple` times the step's tokens, or its output rows. It lives at column `offset` of
// the arena of its kind: with n rows of that kind in the step, at float offset * n.
struct Value {
    bool per_output;
    int64_t multiple, width, offset;
};

// One matrix, or one an expert.
struct Weight {
    std::vector<PackedMatrix> matrices;
    int64_t rows() const { return matrices[0].rows; }
    int64_t cols() const { return matrices[0].cols; }
};

// A matrix as it lies in the model file, of which single rows are read. Somebody else keeps its memory.
struct StoredTable {
    Format format;
    int64_t rows, cols;
    size_t row_bytes;
    const uint8_t* data;
};

struct RopeTable {
    std::vector<double> inverse_frequencies; // [dim / 2]
    double magnitude;
    int64_t axis; // of the positions
};

// Layers that share a block table. A block holds, for each layer in turn, K [kv heads][head_dim][16] and V [kv
// heads][16][head_dim], then padding.
struct StateGroup {
    int64_t num_layers, num_kv_heads, head_dim, num_blocks;
    int64_t side_elements() const { return num_kv_heads * head_dim * 16; } // of K or V of one layer
    // An odd number of 2 KiB: with a power of two from block to block, the same layer of all blocks would fall into the same few
    // sets of the caches, and fetching the next blocks would drop those in use.
    int64_t block_elements() const { return ((num_layers * 2 * side_elements() + 1023) / 1024 | 1) * 1024; }
};

namespace op {

// Row ops.
struct Embed {
    WeightId table;
    ValueId out;
};
struct EmbedStored {
    TableId table;
    ValueId out;
};
struct RmsNorm {
    ValueId x, out;
    VectorId weight;
    int64_t group;
    float eps;
};
struct LayerNorm {
    ValueId x, out;
    VectorId scale, shift;
    int64_t group;
    float eps;
};
struct AddRmsNorm {
    ValueId a, b, sum, out;
    VectorId weight;
    int64_t group;
    float eps;
};
struct Rope {
    ValueId x, out;
    int32_t table;
    int64_t head_dim;
};
struct ActMul {
    ValueId gate, up, out;
    Act act;
};
struct Add {
    ValueId a, b, out;
};
struct Scale {
    ValueId x, out;
    float factor;
};
struct Softcap {
    ValueId x, out;
    float cap;
};
struct MoeRoute {
    ValueId logits, out;
    int64_t top_k;
    bool normalise, sigmoid;
};
struct Combine {
    ValueId y, routing, out;
    int64_t top_k;
};
struct SelectRows {
    ValueId x, out;
};
struct Split {
    ValueId x;
    std::vector<ValueId> outs;
};
struct Concat {
    std::vector<ValueId> xs;
    ValueId out;
};
struct WriteKv {
    ValueId k, v;
    int32_t group;
    int64_t layer;
};
struct Quantise {
    ValueId x;
    bool fine;
}; // fills the activation buffer for the matrix ops that follow

// Ops that are a phase by themselves.
struct Segment {
    WeightId weight;
    VectorId bias;
    ValueId out;
};
struct Linear {
    ValueId x;
    std::vector<Segment> segments;
    bool fine; // as the quantise before it
};
struct GateUpAct {
    ValueId x;
    WeightId gate, up;
    ValueId out;
    Act act;
};
struct GroupExperts {
    ValueId routing;
    int64_t top_k, num_experts;
}; // lists each expert's rows for the moe_linear ops that follow
struct MoeLinear {
    ValueId x;
    std::vector<Segment> segments;
    int64_t top_k;
    bool x_per_expert;
};
struct Attention {
    ValueId q, out;
    int32_t group;
    int64_t layer, num_heads, num_kv_heads, head_dim, window;
    float scale, softcap;
    bool causal;
};

} // namespace op

using RowOp =
    std::variant<op::Embed, op::EmbedStored, op::RmsNorm, op::LayerNorm, op::AddRmsNorm, op::Rope, op::ActMul, op::Add, op::Scale,
                 op::Softcap, op::MoeRoute, op::Combine, op::SelectRows, op::Split, op::Concat, op::WriteKv, op::Quantise>;

struct RowGroup {
    std::vector<RowOp> ops;
    int64_t cost = 0; // floats touched a row
};

using Phase = std::variant<RowGroup, op::Linear, op::GateUpAct, op::GroupExperts, op::MoeLinear, op::Attention>;

struct Plan {
    std::vector<Value> values;
    std::vector<Weight> weights;
    std::vector<StoredTable> tables;
    std::deque<std::vector<float>> vectors;
    std::vector<RopeTable> ropes;
    std::vector<StateGroup> groups;
    std::vector<Phase> token_phases, output_phases; // the latter run once for every piece of the output rows
    ValueId output = kNone;
    int64_t token_columns = 0, output_columns = 0; // of the two arenas
    int64_t vocab_size = 0;                        // rows of the embedding; 0 without one
};

} // namespace tuili
