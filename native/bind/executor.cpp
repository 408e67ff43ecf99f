// Executor: filled op by op from Python, then one call a step. Every method's meaning is that of the struct it fills (plan.h).
#include "program/executor.h"
#include "bind/arrays.h"
#include "bind/bind.h"
#include <algorithm>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <tuple>

namespace tuili {

namespace {

using Segments = std::vector<std::tuple<WeightId, VectorId, ValueId>>;

std::vector<op::Segment> segments(const Segments& list) {
    std::vector<op::Segment> result;
    for (const auto& [weight, bias, out] : list) result.push_back({weight, bias, out});
    return result;
}

std::vector<Phase>& phases(Executor& e, bool per_output) { return per_output ? e.plan().output_phases : e.plan().token_phases; }

// Appends to the group that begin_rows opened last.
void add_row_op(Executor& e, bool per_output, RowOp row_op) {
    std::get<RowGroup>(phases(e, per_output).back()).ops.push_back(std::move(row_op));
}

Step step_of(Fields& fields, nb::handle object, const Plan& plan) {
    const auto length = [&](const char* name) { return static_cast<int64_t>(nb::len(nb::object(object.attr(name)))); };
    Step step{};
    step.num_tokens = length("token_ids");
    step.num_sequences = length("context_lens");
    step.num_outputs = length("logit_rows");
    const size_t tokens = static_cast<size_t>(step.num_tokens), sequences = static_cast<size_t>(step.num_sequences);
    step.token_ids = fields.vector<int32_t>("token_ids", tokens);
    step.query_start = fields.vector<int32_t>("query_start", sequences + 1);
    step.context_lens = fields.vector<int32_t>("context_lens", sequences);
    step.logit_rows = fields.vector<int32_t>("logit_rows", static_cast<size_t>(step.num_outputs));
    const auto positions = fields.matrix<int32_t>("positions");
    if (positions.cols != step.num_tokens) throw std::invalid_argument("positions: not one column a token");
    step.num_axes = positions.rows;
    step.positions = positions.data;
    for (size_t g = 0; g < plan.groups.size(); g++) {
        step.slot_mapping.push_back(fields.vector_in<int32_t>("slot_mapping", g, tokens));
        const auto table = fields.matrix_in<int32_t>("block_tables", g);
        if (table.rows < step.num_sequences) throw std::invalid_argument("block_tables: not one row a sequence");
        step.block_tables.push_back({table.data, table.cols});
    }
    return step;
}

SamplingBatch batch_of(Fields& f, size_t rows) {
    SamplingBatch b{};
    b.temperature = f.vector<float>("temperature", rows);
    b.top_p = f.vector<float>("top_p", rows);
    b.min_p = f.vector<float>("min_p", rows);
    b.repetition_penalty = f.vector<float>("repetition_penalty", rows);
    b.presence_penalty = f.vector<float>("presence_penalty", rows);
    b.frequency_penalty = f.vector<float>("frequency_penalty", rows);
    b.top_k = f.vector<int32_t>("top_k", rows);
    b.seed = f.vector<uint64_t>("seed", rows);
    b.sequence = f.vector<int32_t>("sequence", rows);
    b.position = f.vector<int32_t>("position", rows);
    b.num_logprobs = f.vector<int32_t>("num_logprobs", rows);
    b.target = f.vector<int32_t>("target", rows);
    const auto list_end = [&](const int32_t* start) { return static_cast<size_t>(std::max(start[rows], 0)); };
    b.bias_start = f.vector<int32_t>("bias_start", rows + 1);
    b.bias_ids = f.list<int32_t>("bias_ids", list_end(b.bias_start));
    b.bias_values = f.list<float>("bias_values", list_end(b.bias_start));
    b.penalty_start = f.vector<int32_t>("penalty_start", rows + 1);
    b.penalty_ids = f.list<int32_t>("penalty_ids", list_end(b.penalty_start));
    b.penalty_counts = f.list<int32_t>("penalty_counts", list_end(b.penalty_start));
    b.allowed_start = f.vector<int32_t>("allowed_start", rows + 1);
    b.allowed_ids = f.list<int32_t>("allowed_ids", list_end(b.allowed_start));
    return b;
}

using OutIds = Array1<int32_t>;
using OutFloats = Array1<float>;

SamplingResult result_of(const OutIds& token_ids, const OutFloats& logprobs, const Array2<int32_t>& top_ids,
                         const Array2<float>& top_logprobs, const SamplingBatch& batch, size_t rows) {
    const auto widest = static_cast<int64_t>(top_ids.shape(1));
    if (token_ids.shape(0) != rows || logprobs.shape(0) != rows || top_ids.shape(0) != rows || top_logprobs.shape(0) != rows ||
        top_logprobs.shape(1) != top_ids.shape(1))
        throw std::invalid_argument("result arrays do not fit the rows");
    for (size_t r = 0; r < rows; r++)
        if (batch.num_logprobs[r] > widest)
            throw std::invalid_argument("more alternatives asked for than the result has room for");
    return {token_ids.data(), logprobs.data(), top_ids.data(), top_logprobs.data(), widest};
}

void sample_step(Executor& e, nb::handle step_object, nb::handle batch_object, const OutIds& token_ids, const OutFloats& logprobs,
                 const Array2<int32_t>& top_ids, const Array2<float>& top_logprobs) {
    Fields step_fields(step_object), batch_fields(batch_object);
    const Step step = step_of(step_fields, step_object, e.plan());
    const auto rows = static_cast<size_t>(step.num_outputs);
    const SamplingBatch batch = batch_of(batch_fields, rows);
    const SamplingResult result = result_of(token_ids, logprobs, top_ids, top_logprobs, batch, rows);
    nb::gil_scoped_release unlocked;
    e.sample(step, batch, result);
}

void run_step(Executor& e, nb::handle step_object, const Array2<float>& out) {
    Fields fields(step_object);
    const Step step = step_of(fields, step_object, e.plan());
    const int64_t width = e.plan().values[static_cast<size_t>(e.plan().output)].width;
    if (static_cast<int64_t>(out.shape(0)) != step.num_outputs || static_cast<int64_t>(out.shape(1)) != width)
        throw std::invalid_argument("the output array does not fit");
    nb::gil_scoped_release unlocked;
    e.run(step, out.data());
}

// Samples rows of logits (they are changed) without a model: for tests and for the speed of the sampler by itself.
void sample_logits(int isa, const Array2<float>& logits, nb::handle batch_object, const OutIds& token_ids,
                   const OutFloats& logprobs, const Array2<int32_t>& top_ids, const Array2<float>& top_logprobs) {
    Fields fields(batch_object);
    const size_t rows = logits.shape(0);
    const auto width = static_cast<int64_t>(logits.shape(1));
    const SamplingBatch batch = batch_of(fields, rows);
    check(batch, static_cast<int64_t>(rows), width);
    const SamplingResult result = result_of(token_ids, logprobs, top_ids, top_logprobs, batch, rows);
    const OpKernels& kernels = kernels_of(static_cast<Isa>(isa)).ops;
    nb::gil_scoped_release unlocked;
    for (size_t r = 0; r < rows; r++) {
        float* const row = logits.data() + static_cast<int64_t>(r) * width;
        sample_row(kernels, row, width, kernels.row_maximum(row, width), batch, static_cast<int64_t>(r), result);
    }
}

using PlainTiming = std::tuple<int64_t, int64_t, int64_t>;

// Of each kind of step: the whole step, rope tables, sampling, then the phases in the order of the plan.
std::vector<std::vector<PlainTiming>> profile_of(const Executor& e) {
    std::vector<std::vector<PlainTiming>> result;
    const auto plain = [](const Timing& t) { return PlainTiming{t.calls, t.rows, t.nanoseconds}; };
    if (!e.profile()) return result;
    for (const StepTimings& kind : *e.profile()) {
        std::vector<PlainTiming> timings{plain(kind.step), plain(kind.rope_tables), plain(kind.sampling)};
        for (const auto* phases : {&kind.token_phases, &kind.output_phases})
            for (const Timing& t : *phases) timings.push_back(plain(t));
        result.push_back(std::move(timings));
    }
    return result;
}

void bind_values(nb::class_<Executor>& c) {
    using namespace nb::literals;
    c.def(
        "add_value",
        [](Executor& e, bool per_output, int64_t multiple, int64_t width, int64_t offset) {
            e.plan().values.push_back({per_output, multiple, width, offset});
            return static_cast<ValueId>(e.plan().values.size() - 1);
        },
        "per_output"_a, "multiple"_a, "width"_a, "offset"_a);
    c.def("add_vector", [](Executor& e, const Array1<const float>& data) {
        e.plan().vectors.emplace_back(data.data(), data.data() + data.shape(0));
        return static_cast<VectorId>(e.plan().vectors.size() - 1);
    });
    c.def(
        "add_rope",
        [](Executor& e, std::vector<double> inverse_frequencies, double magnitude, int64_t axis) {
            e.plan().ropes.push_back({std::move(inverse_frequencies), magnitude, axis});
            return static_cast<int32_t>(e.plan().ropes.size() - 1);
        },
        "inverse_frequencies"_a, "magnitude"_a, "axis"_a);
    c.def(
        "add_state_group",
        [](Executor& e, int64_t num_layers, int64_t num_kv_heads, int64_t head_dim, int64_t num_blocks) {
            e.plan().groups.push_back({num_layers, num_kv_heads, head_dim, num_blocks});
            return static_cast<int32_t>(e.plan().groups.size() - 1);
        },
        "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "num_blocks"_a);
}

void bind_row_ops(nb::class_<Executor>& c) {
    using namespace nb::literals;
    c.def(
        "begin_rows", [](Executor& e, bool per_output, int64_t cost) { phases(e, per_output).push_back(RowGroup{{}, cost}); },
        "per_output"_a, "cost"_a, "Open a group: the row ops that follow, with the same per_output, belong to it.");
    c.def(
        "embed",
        [](Executor& e, WeightId table, ValueId out) {
            e.plan().vocab_size = e.plan().weights.at(static_cast<size_t>(table)).rows();
            add_row_op(e, false, op::Embed{table, out});
        },
        "table"_a, "out"_a);
    c.def(
        "rms_norm",
        [](Executor& e, bool r, ValueId x, ValueId out, VectorId weight, int64_t group, float eps) {
            add_row_op(e, r, op::RmsNorm{x, out, weight, group, eps});
        },
        "per_output"_a, "x"_a, "out"_a, "weight"_a, "group"_a, "eps"_a);
    c.def(
        "layer_norm",
        [](Executor& e, bool r, ValueId x, ValueId out, VectorId scale, VectorId shift, int64_t group, float eps) {
            add_row_op(e, r, op::LayerNorm{x, out, scale, shift, group, eps});
        },
        "per_output"_a, "x"_a, "out"_a, "scale"_a, "shift"_a, "group"_a, "eps"_a);
    c.def(
        "add_rms_norm",
        [](Executor& e, bool r, ValueId a, ValueId b, ValueId sum, ValueId out, VectorId w, int64_t group, float eps) {
            add_row_op(e, r, op::AddRmsNorm{a, b, sum, out, w, group, eps});
        },
        "per_output"_a, "a"_a, "b"_a, "sum"_a, "out"_a, "weight"_a, "group"_a, "eps"_a);
    c.def(
        "rope",
        [](Executor& e, ValueId x, ValueId out, int32_t table, int64_t head_dim) {
            add_row_op(e, false, op::Rope{x, out, table, head_dim});
        },
        "x"_a, "out"_a, "table"_a, "head_dim"_a);
    c.def(
        "act_mul",
        [](Executor& e, bool r, ValueId gate, ValueId up, ValueId out, int act) {
            add_row_op(e, r, op::ActMul{gate, up, out, static_cast<Act>(act)});
        },
        "per_output"_a, "gate"_a, "up"_a, "out"_a, "act"_a);
    c.def(
        "add", [](Executor& e, bool r, ValueId a, ValueId b, ValueId out) { add_row_op(e, r, op::Add{a, b, out}); },
        "per_output"_a, "a"_a, "b"_a, "out"_a);
    c.def(
        "scale", [](Executor& e, bool r, ValueId x, ValueId out, float factor) { add_row_op(e, r, op::Scale{x, out, factor}); },
        "per_output"_a, "x"_a, "out"_a, "factor"_a);
    c.def(
        "softcap", [](Executor& e, bool r, ValueId x, ValueId out, float cap) { add_row_op(e, r, op::Softcap{x, out, cap}); },
        "per_output"_a, "x"_a, "out"_a, "cap"_a);
    c.def(
        "moe_route",
        [](Executor& e, bool r, ValueId logits, ValueId out, int64_t top_k, bool normalise, bool sigmoid) {
            add_row_op(e, r, op::MoeRoute{logits, out, top_k, normalise, sigmoid});
        },
        "per_output"_a, "logits"_a, "out"_a, "top_k"_a, "normalise"_a, "sigmoid"_a);
    c.def(
        "combine",
        [](Executor& e, bool r, ValueId y, ValueId routing, ValueId out, int64_t top_k) {
            add_row_op(e, r, op::Combine{y, routing, out, top_k});
        },
        "per_output"_a, "y"_a, "routing"_a, "out"_a, "top_k"_a);
    c.def(
        "select_rows", [](Executor& e, ValueId x, ValueId out) { add_row_op(e, true, op::SelectRows{x, out}); }, "x"_a, "out"_a);
    c.def(
        "split",
        [](Executor& e, bool r, ValueId x, std::vector<ValueId> outs) { add_row_op(e, r, op::Split{x, std::move(outs)}); },
        "per_output"_a, "x"_a, "outs"_a);
    c.def(
        "concat",
        [](Executor& e, bool r, std::vector<ValueId> xs, ValueId out) { add_row_op(e, r, op::Concat{std::move(xs), out}); },
        "per_output"_a, "xs"_a, "out"_a);
    c.def(
        "write_kv",
        [](Executor& e, ValueId k, ValueId v, int32_t group, int64_t layer) {
            add_row_op(e, false, op::WriteKv{k, v, group, layer});
        },
        "k"_a, "v"_a, "group"_a, "layer"_a);
    c.def(
        "quantise", [](Executor& e, bool r, ValueId x, bool fine) { add_row_op(e, r, op::Quantise{x, fine}); }, "per_output"_a,
        "x"_a, "fine"_a);
}

void bind_phases(nb::class_<Executor>& c) {
    using namespace nb::literals;
    c.def(
        "linear",
        [](Executor& e, bool r, ValueId x, const Segments& s, bool fine) {
            phases(e, r).push_back(op::Linear{x, segments(s), fine});
        },
        "per_output"_a, "x"_a, "segments"_a, "fine"_a);
    c.def(
        "gate_up_act",
        [](Executor& e, bool r, ValueId x, WeightId gate, WeightId up, ValueId out, int act) {
            phases(e, r).push_back(op::GateUpAct{x, gate, up, out, static_cast<Act>(act)});
        },
        "per_output"_a, "x"_a, "gate"_a, "up"_a, "out"_a, "act"_a);
    c.def(
        "group_experts",
        [](Executor& e, bool r, ValueId routing, int64_t top_k, int64_t num_experts) {
            phases(e, r).push_back(op::GroupExperts{routing, top_k, num_experts});
        },
        "per_output"_a, "routing"_a, "top_k"_a, "num_experts"_a);
    c.def(
        "moe_linear",
        [](Executor& e, bool r, ValueId x, const Segments& s, int64_t top_k, bool x_per_expert) {
            phases(e, r).push_back(op::MoeLinear{x, segments(s), top_k, x_per_expert});
        },
        "per_output"_a, "x"_a, "segments"_a, "top_k"_a, "x_per_expert"_a);
    c.def(
        "attention",
        [](Executor& e, ValueId q, ValueId out, int32_t group, int64_t layer, int64_t num_heads, int64_t num_kv_heads,
           int64_t head_dim, int64_t window, float scale, float softcap, bool causal) {
            phases(e, false).push_back(
                op::Attention{q, out, group, layer, num_heads, num_kv_heads, head_dim, window, scale, softcap, causal});
        },
        "q"_a, "out"_a, "group"_a, "layer"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "window"_a, "scale"_a, "softcap"_a,
        "causal"_a);
}

} // namespace

void bind_executor(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<Executor> c(m, "Executor");
    c.def(
        "__init__",
        [](Executor* e, int isa, int num_threads, const std::vector<int>& cpus) {
            new (e) Executor(static_cast<Isa>(isa), num_threads, cpus);
        },
        "isa"_a, "num_threads"_a, "cpus"_a = std::vector<int>{});
    bind_weights(c);
    bind_values(c);
    bind_row_ops(c);
    bind_phases(c);
    c.def(
        "finish",
        [](Executor& e, ValueId output, int64_t token_columns, int64_t output_columns, int64_t max_tokens, int64_t max_outputs) {
            e.plan().output = output;
            e.plan().token_columns = token_columns;
            e.plan().output_columns = output_columns;
            e.finish({max_tokens, max_outputs});
        },
        "output"_a, "token_columns"_a, "output_columns"_a, "max_tokens"_a, "max_outputs_at_once"_a);
    c.def("run", &run_step, "step"_a, "out"_a);
    c.def("sample", &sample_step, "step"_a, "sampling"_a, "token_ids"_a, "logprobs"_a, "top_ids"_a, "top_logprobs"_a);
    c.def("arena_bytes", &Executor::arena_bytes);
    c.def("start_profile", &Executor::start_profile);
    c.def("profile", &profile_of);
    c.def("read_blocks", [](const Executor& e, int64_t group, const Array1<const int32_t>& blocks, const Array2<uint8_t>& out) {
        e.read_blocks(group, blocks.data(), static_cast<int64_t>(blocks.shape(0)), out.data());
    });
    c.def("write_blocks", [](Executor& e, int64_t group, const Array1<const int32_t>& blocks, const Array2<const uint8_t>& data) {
        e.write_blocks(group, blocks.data(), static_cast<int64_t>(blocks.shape(0)), data.data());
    });
    m.def("sample_logits", &sample_logits, "isa"_a, "logits"_a, "sampling"_a, "token_ids"_a, "logprobs"_a, "top_ids"_a,
          "top_logprobs"_a);
}

} // namespace tuili
