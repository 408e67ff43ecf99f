#include "program/executor.h"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace tuili {

namespace {

// What waiting threads fetch of the weights: in a step about what a core's second-level cache holds beside the rest, between two
// steps what the last-level cache can.
constexpr size_t kAheadInStep = size_t{256} << 10, kAheadBetweenSteps = size_t{8} << 20;

// `number`: of the first of these phases, among all of the plan.
void run_phases(const std::vector<Phase>& phases, size_t number, const Frame& frame, int64_t rows, std::vector<Timing>* timings) {
    for (size_t i = 0; i < phases.size(); i++) {
        frame.pool.read_ahead().expect(number + i + 1, kAheadInStep);
        timed(timings ? &(*timings)[i] : nullptr, rows, [&] { std::visit([&](const auto& p) { run(p, frame); }, phases[i]); });
    }
}

// The weights that a phase reads, if all of them are read.
ReadAhead::Stretch stretch(const Plan& plan, const Phase& phase) {
    const auto matrix = [&](WeightId id) -> const PackedMatrix& { return plan.weights[static_cast<size_t>(id)].matrices[0]; };
    if (const auto* linear = std::get_if<op::Linear>(&phase)) {
        const uint8_t *const begin = matrix(linear->segments[0].weight).data, *end = begin;
        for (const op::Segment& s : linear->segments)
            if (matrix(s.weight).data == end) end += matrix(s.weight).bytes(); // loading put them one behind the other
        return {begin, nullptr, static_cast<size_t>(end - begin)};
    }
    if (const auto* pair = std::get_if<op::GateUpAct>(&phase)) {
        const PackedMatrix &gate = matrix(pair->gate), &up = matrix(pair->up);
        return {gate.data, up.data, std::min(gate.bytes(), up.bytes())};
    }
    return {nullptr, nullptr, 0};
}

// The maximum of a row, stretches of it found by all threads.
RowMaximum shared_maximum(const OpKernels& kernels, ThreadPool& pool, const float* row, int64_t width) {
    constexpr int64_t kStretch = 16 * 1024;
    std::vector<RowMaximum> maxima(static_cast<size_t>((width + kStretch - 1) / kStretch));
    pool.run(static_cast<int64_t>(maxima.size()), [&](int64_t i, int) {
        maxima[static_cast<size_t>(i)] = kernels.row_maximum(row + i * kStretch, std::min(kStretch, width - i * kStretch));
    });
    RowMaximum top = maxima[0];
    for (size_t i = 1; i < maxima.size(); i++) {
        const bool invalid = top.invalid || maxima[i].invalid;
        if (maxima[i].value > top.value) {
            top = maxima[i];
            top.index += static_cast<int32_t>(static_cast<int64_t>(i) * kStretch);
        }
        top.invalid = invalid;
    }
    return top;
}

} // namespace

Executor::Executor(Isa isa, int num_threads, const std::vector<int>& cpus)
    : kernels_(kernels_of(isa)), pool_(num_threads, cpus), weights_(kernels_.linear, pool_) {}

void Executor::finish(const Limits& limits) {
    limits_ = limits;
    std::vector<ReadAhead::Stretch> stretches;
    for (const Phase& phase : plan_.token_phases) stretches.push_back(stretch(plan_, phase));
    for (const Phase& phase : plan_.output_phases) stretches.push_back(stretch(plan_, phase));
    pool_.read_ahead().set(stretches);
    const size_t tokens = static_cast<size_t>(limits.max_tokens), outputs = static_cast<size_t>(limits.max_outputs_at_once);
    work_.token_arena = Buffer(static_cast<size_t>(plan_.token_columns) * tokens * sizeof(float));
    work_.output_arena = Buffer(static_cast<size_t>(plan_.output_columns) * outputs * sizeof(float));
    work_.activations = Buffer(activation_bytes());
    int64_t cols = 1;
    for (const Weight& w : plan_.weights) cols = std::max(cols, w.cols());
    const size_t scratch = std::max(kernels_.linear.scratch_bytes(cols), static_cast<size_t>(kAttentionScratch) * sizeof(float));
    for (int i = 0; i < pool_.num_threads(); i++) work_.thread_scratch.emplace_back(scratch);
    for (const StateGroup& g : plan_.groups)
        work_.kv_pools.emplace_back(static_cast<size_t>(g.num_blocks * g.block_elements()) * sizeof(uint16_t));
    for (const RopeTable& r : plan_.ropes) {
        work_.cosines.emplace_back(tokens * r.inverse_frequencies.size() * sizeof(float));
        work_.sines.emplace_back(tokens * r.inverse_frequencies.size() * sizeof(float));
    }
}

// The largest activation that is ever quantised.
size_t Executor::activation_bytes() const {
    size_t bytes = 0;
    const auto look = [&](const Phase& phase) {
        const auto* group = std::get_if<RowGroup>(&phase);
        if (!group) return;
        for (const RowOp& row_op : group->ops)
            if (const auto* quantise = std::get_if<op::Quantise>(&row_op)) {
                const Value& x = plan_.values[static_cast<size_t>(quantise->x)];
                const int64_t units = x.per_output ? limits_.max_outputs_at_once : limits_.max_tokens;
                const int64_t rows = units * x.multiple * (quantise->fine ? 2 : 1);
                bytes = std::max(bytes, kernels_.linear.activation_bytes(rows, x.width));
            }
    };
    for (const Phase& phase : plan_.token_phases) look(phase);
    for (const Phase& phase : plan_.output_phases) look(phase);
    return bytes;
}

size_t Executor::arena_bytes() const { return work_.token_arena.size() + work_.output_arena.size() + work_.activations.size(); }

// Angles in double: position * inverse frequency, once a step for all layers.
void Executor::fill_rope_tables(const Frame& f) {
    for (size_t r = 0; r < plan_.ropes.size(); r++) {
        const RopeTable& rope = plan_.ropes[r];
        const size_t half = rope.inverse_frequencies.size();
        const int32_t* positions = f.step.positions + rope.axis * f.step.num_tokens;
        constexpr int64_t kChunk = 16;
        pool_.run((f.step.num_tokens + kChunk - 1) / kChunk, [&](int64_t chunk, int) {
            for (int64_t t = chunk * kChunk; t < std::min((chunk + 1) * kChunk, f.step.num_tokens); t++)
                for (size_t i = 0; i < half; i++) {
                    const double angle = positions[t] * rope.inverse_frequencies[i];
                    work_.cosines[r].as<float>()[static_cast<size_t>(t) * half + i] =
                        static_cast<float>(std::cos(angle) * rope.magnitude);
                    work_.sines[r].as<float>()[static_cast<size_t>(t) * half + i] =
                        static_cast<float>(std::sin(angle) * rope.magnitude);
                }
        });
    }
}

void Executor::start_profile() {
    profile_ = std::make_unique<Profile>();
    for (StepTimings& kind : *profile_) {
        kind.token_phases.resize(plan_.token_phases.size());
        kind.output_phases.resize(plan_.output_phases.size());
    }
}

StepTimings* Executor::timings_of(const Step& step) const {
    return profile_ ? &(*profile_)[step.num_tokens == step.num_sequences] : nullptr;
}

// Runs the step; the output rows come in pieces, so that logits never need more than max_outputs_at_once rows of memory.
template <class Consume>
void Executor::run_pieces(Frame& frame, StepTimings* timings, Consume consume) {
    const ThreadPool::Active active(pool_);
    const int64_t tokens = frame.step.num_tokens;
    timed(timings ? &timings->step : nullptr, tokens, [&] {
        timed(timings ? &timings->rope_tables : nullptr, tokens, [&] { fill_rope_tables(frame); });
        run_phases(plan_.token_phases, 0, frame, tokens, timings ? &timings->token_phases : nullptr);
        for (int64_t first = 0; first < frame.step.num_outputs; first += limits_.max_outputs_at_once) {
            frame.first_output = first;
            frame.num_outputs = std::min(limits_.max_outputs_at_once, frame.step.num_outputs - first);
            consume();
        }
    });
    pool_.read_ahead().restart(kAheadBetweenSteps);
}

void Executor::run(const Step& step, float* out) {
    check(step, plan_, limits_);
    Frame frame{plan_, kernels_, pool_, work_, step};
    const int64_t width = frame.value(plan_.output).width;
    StepTimings* const timings = timings_of(step);
    run_pieces(frame, timings, [&] {
        frame.output = out + frame.first_output * width;
        run_phases(plan_.output_phases, plan_.token_phases.size(), frame, frame.num_outputs,
                   timings ? &timings->output_phases : nullptr);
    });
}

// Fewer rows than threads: all threads look for a row's maximum, which is all that a greedy row needs.
void Executor::sample_rows(const Frame& frame, const SamplingBatch& batch, const SamplingResult& result) {
    const int64_t width = frame.value(plan_.output).width, n = frame.num_outputs;
    float* const logits = frame.data(plan_.output);
    const auto sample = [&](int64_t i, const RowMaximum& maximum) {
        sample_row(kernels_.ops, logits + i * width, width, maximum, batch, frame.first_output + i, result);
    };
    if (n >= pool_.num_threads())
        return pool_.run(n, [&](int64_t i, int) { sample(i, kernels_.ops.row_maximum(logits + i * width, width)); });
    for (int64_t i = 0; i < n; i++) sample(i, shared_maximum(kernels_.ops, pool_, logits + i * width, width));
}

void Executor::sample(const Step& step, const SamplingBatch& batch, const SamplingResult& result) {
    check(step, plan_, limits_);
    Frame frame{plan_, kernels_, pool_, work_, step};
    const int64_t width = frame.value(plan_.output).width;
    check(batch, step.num_outputs, width);
    StepTimings* const timings = timings_of(step);
    run_pieces(frame, timings, [&] {
        run_phases(plan_.output_phases, plan_.token_phases.size(), frame, frame.num_outputs,
                   timings ? &timings->output_phases : nullptr);
        timed(timings ? &timings->sampling : nullptr, frame.num_outputs, [&] { sample_rows(frame, batch, result); });
    });
}

namespace {

void check_blocks(const int32_t* blocks, int64_t n, const StateGroup& group) {
    for (int64_t i = 0; i < n; i++)
        if (blocks[i] < 0 || blocks[i] >= group.num_blocks) throw std::out_of_range("block " + std::to_string(blocks[i]));
}

} // namespace

void Executor::read_blocks(int64_t group, const int32_t* blocks, int64_t n, uint8_t* out) const {
    const StateGroup& g = plan_.groups.at(static_cast<size_t>(group));
    check_blocks(blocks, n, g);
    const size_t bytes = static_cast<size_t>(g.block_elements()) * sizeof(uint16_t);
    const uint8_t* pool = work_.kv_pools[static_cast<size_t>(group)].data();
    for (int64_t i = 0; i < n; i++)
        std::memcpy(out + static_cast<size_t>(i) * bytes, pool + static_cast<size_t>(blocks[i]) * bytes, bytes);
}

void Executor::write_blocks(int64_t group, const int32_t* blocks, int64_t n, const uint8_t* data) {
    const StateGroup& g = plan_.groups.at(static_cast<size_t>(group));
    check_blocks(blocks, n, g);
    const size_t bytes = static_cast<size_t>(g.block_elements()) * sizeof(uint16_t);
    uint8_t* pool = work_.kv_pools[static_cast<size_t>(group)].data();
    for (int64_t i = 0; i < n; i++)
        std::memcpy(pool + static_cast<size_t>(blocks[i]) * bytes, data + static_cast<size_t>(i) * bytes, bytes);
}

} // namespace tuili
