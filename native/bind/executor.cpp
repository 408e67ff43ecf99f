// Executor: filled op by op from Python, then one call a step. Every method's meaning is that of the struct it fills (plan.h).
#include "program/executor.h"
#include "bind/arrays.h"
#include "bind/bind.h"
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
        "embed_stored",
        [](Executor& e, TableId table, ValueId out) {
            e.plan().vocab_size = e.plan().tables.at(static_cast<size_t>(table)).rows;
            add_row_op(e, false, op::EmbedStored{table, out});
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
    bind_steps(m, c);
    c.def("arena_bytes", &Executor::arena_bytes);
    c.def("start_profile", &Executor::start_profile);
    c.def("profile", &profile_of);
    c.def("read_blocks", [](const Executor& e, int64_t group, const Array1<const int32_t>& blocks, const Array2<uint8_t>& out) {
        e.read_blocks(group, blocks.data(), static_cast<int64_t>(blocks.shape(0)), out.data());
    });
    c.def("write_blocks", [](Executor& e, int64_t group, const Array1<const int32_t>& blocks, const Array2<const uint8_t>& data) {
        e.write_blocks(group, blocks.data(), static_cast<int64_t>(blocks.shape(0)), data.data());
    });
}

} // namespace tuili
