#include "program/step.h"
#include <algorithm>
#include <stdexcept>
#include <string>

namespace tuili {

namespace {

constexpr int64_t kBlock = 16;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("step input: " + what); }

void check_range(const int32_t* values, int64_t n, int64_t limit, const char* name) {
    for (int64_t i = 0; i < n; i++)
        if (values[i] < 0 || values[i] >= limit)
            refuse(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) + ", not in [0, " +
                   std::to_string(limit) + ")");
}

void check_sequences(const Step& step) {
    if (step.query_start[0] != 0 || step.query_start[step.num_sequences] != step.num_tokens)
        refuse("query_start does not span the tokens");
    for (int64_t s = 0; s < step.num_sequences; s++) {
        const int64_t queries = int64_t{step.query_start[s + 1]} - step.query_start[s];
        if (queries < 1) refuse("sequence " + std::to_string(s) + " has no tokens");
        if (step.context_lens[s] < queries) refuse("context of sequence " + std::to_string(s) + " is shorter than its tokens");
    }
}

// Largest window of the layers of a group decides which blocks are read.
int64_t group_window(const Plan& plan, int32_t group) {
    int64_t window = 0;
    for (const Phase& phase : plan.token_phases)
        if (const auto* a = std::get_if<op::Attention>(&phase); a && a->group == group) {
            if (a->window == 0) return 0;
            window = std::max(window, a->window);
        }
    return window;
}

void check_blocks(const Step& step, const Plan& plan, int32_t group) {
    const int64_t num_blocks = plan.groups[static_cast<size_t>(group)].num_blocks;
    check_range(step.slot_mapping[static_cast<size_t>(group)], step.num_tokens, num_blocks * kBlock, "slot_mapping");
    const BlockTable& table = step.block_tables[static_cast<size_t>(group)];
    const int64_t window = group_window(plan, group);
    for (int64_t s = 0; s < step.num_sequences; s++) {
        const int64_t context = step.context_lens[s], queries = step.query_start[s + 1] - step.query_start[s];
        const int64_t last = (context + kBlock - 1) / kBlock;
        if (last > table.stride) refuse("block table is too short for sequence " + std::to_string(s));
        const int64_t first = window > 0 ? std::max<int64_t>(0, context - queries - window + 1) / kBlock : 0;
        check_range(table.data + s * table.stride + first, last - first, num_blocks, "block_tables");
    }
}

} // namespace

void check(const Step& step, const Plan& plan, const Limits& limits) {
    if (step.num_tokens < 1 || step.num_sequences < 1) refuse("it holds no tokens");
    if (step.num_tokens > limits.max_tokens)
        refuse(std::to_string(step.num_tokens) + " tokens, but the limit is " + std::to_string(limits.max_tokens));
    if (step.slot_mapping.size() != plan.groups.size() || step.block_tables.size() != plan.groups.size())
        refuse("needs one slot mapping and one block table for each of the " + std::to_string(plan.groups.size()) +
               " state groups");
    if (plan.vocab_size > 0) check_range(step.token_ids, step.num_tokens, plan.vocab_size, "token_ids");
    check_range(step.logit_rows, step.num_outputs, step.num_tokens, "logit_rows");
    for (const RopeTable& rope : plan.ropes)
        if (rope.axis >= step.num_axes) refuse("positions lack axis " + std::to_string(rope.axis));
    check_sequences(step);
    for (int32_t g = 0; g < static_cast<int32_t>(plan.groups.size()); g++) check_blocks(step, plan, g);
}

} // namespace tuili
