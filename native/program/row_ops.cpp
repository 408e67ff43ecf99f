#include "program/frame.h"
#include <algorithm>
#include <cstring>

namespace tuili {

namespace {

// Work below this many floats is not worth waking another thread for.
constexpr int64_t kSerialFloats = 12 * 1024;

void copy(float* to, const float* from, int64_t n) { std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float)); }

// Calls f(row) for the matrix rows of units [first, last) of a value.
template <class F>
void each_row(const Frame& f, ValueId id, int64_t first, int64_t last, F body) {
    const int64_t multiple = f.value(id).multiple;
    for (int64_t r = first * multiple; r < last * multiple; r++) body(r);
}

void rows(const op::Embed& o, const Frame& f, int64_t first, int64_t last) {
    const PackedMatrix& table = f.weight(o.table).matrices[0];
    for (int64_t t = first; t < last; t++) f.kernels.linear.unpack_row(table, f.step.token_ids[t], f.row(o.out, t));
}

void rows(const op::EmbedStored& o, const Frame& f, int64_t first, int64_t last) {
    const StoredTable& table = f.plan.tables[static_cast<size_t>(o.table)];
    for (int64_t t = first; t < last; t++) {
        const auto row = static_cast<size_t>(f.step.token_ids[t]);
        f.kernels.linear.decode_row(table.format, table.data + row * table.row_bytes, table.cols, f.row(o.out, t));
    }
}

void rows(const op::RmsNorm& o, const Frame& f, int64_t first, int64_t last) {
    const int64_t width = f.value(o.x).width;
    each_row(f, o.x, first, last, [&](int64_t r) {
        f.kernels.ops.rms_norm(f.data(o.x) + r * width, f.vector(o.weight), f.data(o.out) + r * width, width, o.group, o.eps);
    });
}

void rows(const op::LayerNorm& o, const Frame& f, int64_t first, int64_t last) {
    const int64_t width = f.value(o.x).width;
    each_row(f, o.x, first, last, [&](int64_t r) {
        f.kernels.ops.layer_norm(f.data(o.x) + r * width, f.vector(o.scale), f.vector(o.shift), f.data(o.out) + r * width, width,
                                 o.group, o.eps);
    });
}

void rows(const op::AddRmsNorm& o, const Frame& f, int64_t first, int64_t last) {
    const int64_t width = f.value(o.a).width;
    each_row(f, o.a, first, last, [&](int64_t r) {
        float* sum = f.data(o.sum) + r * width;
        f.kernels.ops.add(f.data(o.a) + r * width, f.data(o.b) + r * width, sum, width);
        f.kernels.ops.rms_norm(sum, f.vector(o.weight), f.data(o.out) + r * width, width, o.group, o.eps);
    });
}

void rows(const op::Rope& o, const Frame& f, int64_t first, int64_t last) {
    const size_t table = static_cast<size_t>(o.table);
    const int64_t half = static_cast<int64_t>(f.plan.ropes[table].inverse_frequencies.size());
    for (int64_t t = first; t < last; t++)
        f.kernels.ops.rope(f.row(o.x, t), f.work.cosines[table].as<float>() + t * half,
                           f.work.sines[table].as<float>() + t * half, f.row(o.out, t), f.value(o.x).width / o.head_dim,
                           o.head_dim, 2 * half);
}

// Ops on single elements take all rows of the range as one.
int64_t elements(const Frame& f, ValueId id, int64_t first, int64_t last) {
    return (last - first) * f.value(id).multiple * f.value(id).width;
}

void rows(const op::ActMul& o, const Frame& f, int64_t first, int64_t last) {
    f.kernels.ops.act_mul(o.act, f.row(o.gate, first), f.row(o.up, first), f.row(o.out, first), elements(f, o.out, first, last));
}

void rows(const op::Add& o, const Frame& f, int64_t first, int64_t last) {
    f.kernels.ops.add(f.row(o.a, first), f.row(o.b, first), f.row(o.out, first), elements(f, o.out, first, last));
}

void rows(const op::Scale& o, const Frame& f, int64_t first, int64_t last) {
    f.kernels.ops.scale(f.row(o.x, first), o.factor, f.row(o.out, first), elements(f, o.out, first, last));
}

void rows(const op::Softcap& o, const Frame& f, int64_t first, int64_t last) {
    f.kernels.ops.softcap(f.row(o.x, first), o.cap, f.row(o.out, first), elements(f, o.out, first, last));
}

// The top_k largest scores, best first, the lower id first among equals.
void choose_experts(const float* scores, int64_t num_experts, int64_t top_k, float* weights, int32_t* ids) {
    for (int64_t j = 0; j < top_k; j++) {
        int32_t best = kNone;
        for (int32_t e = 0; e < num_experts; e++) {
            const bool taken = std::find(ids, ids + j, e) != ids + j;
            if (!taken && (best == kNone || scores[e] > scores[best])) best = e;
        }
        ids[j] = best;
        weights[j] = scores[best];
    }
}

void rows(const op::MoeRoute& o, const Frame& f, int64_t first, int64_t last) {
    const int64_t num_experts = f.value(o.logits).width;
    std::vector<float> scores(static_cast<size_t>(num_experts));
    int32_t* ids = f.expert_ids(o.out);
    each_row(f, o.logits, first, last, [&](int64_t r) {
        const float* logits = f.data(o.logits) + r * num_experts;
        (o.sigmoid ? f.kernels.ops.sigmoid : f.kernels.ops.softmax)(logits, scores.data(), num_experts);
        float* weights = f.data(o.out) + r * o.top_k;
        choose_experts(scores.data(), num_experts, o.top_k, weights, ids + r * o.top_k);
        if (!o.normalise) return;
        float sum = 0;
        for (int64_t j = 0; j < o.top_k; j++) sum += weights[j];
        for (int64_t j = 0; j < o.top_k; j++) weights[j] /= sum;
    });
}

void rows(const op::Combine& o, const Frame& f, int64_t first, int64_t last) {
    const int64_t width = f.value(o.out).width;
    each_row(f, o.out, first, last, [&](int64_t r) {
        f.kernels.ops.weighted_sum(f.data(o.y) + r * o.top_k * width, f.data(o.routing) + r * o.top_k, o.top_k,
                                   f.data(o.out) + r * width, width);
    });
}

void rows(const op::SelectRows& o, const Frame& f, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++)
        copy(f.row(o.out, r), f.row(o.x, f.step.logit_rows[f.first_output + r]), f.value(o.x).width);
}

void rows(const op::Split& o, const Frame& f, int64_t first, int64_t last) {
    each_row(f, o.x, first, last, [&](int64_t r) {
        const float* from = f.data(o.x) + r * f.value(o.x).width;
        for (const ValueId out : o.outs) {
            const int64_t width = f.value(out).width;
            copy(f.data(out) + r * width, from, width);
            from += width;
        }
    });
}

void rows(const op::Concat& o, const Frame& f, int64_t first, int64_t last) {
    each_row(f, o.out, first, last, [&](int64_t r) {
        float* to = f.data(o.out) + r * f.value(o.out).width;
        for (const ValueId x : o.xs) {
            const int64_t width = f.value(x).width;
            copy(to, f.data(x) + r * width, width);
            to += width;
        }
    });
}

void rows(const op::WriteKv& o, const Frame& f, int64_t first, int64_t last) {
    const size_t g = static_cast<size_t>(o.group);
    const StateGroup& group = f.plan.groups[g];
    const int head_dim = static_cast<int>(group.head_dim);
    for (int64_t t = first; t < last; t++) {
        const int32_t slot = f.step.slot_mapping[g][t];
        uint16_t* k =
            f.work.kv_pools[g].as<uint16_t>() + slot / kBlockSize * group.block_elements() + o.layer * 2 * group.side_elements();
        uint16_t* v = k + group.side_elements();
        for (int64_t h = 0; h < group.num_kv_heads; h++)
            f.kernels.ops.write_kv(f.row(o.k, t) + h * head_dim, f.row(o.v, t) + h * head_dim, k + h * head_dim * kBlockSize,
                                   v + h * head_dim * kBlockSize, slot % kBlockSize, head_dim);
    }
}

void rows(const op::Quantise& o, const Frame& f, int64_t first, int64_t last) {
    const Value& x = f.value(o.x);
    const auto quantise = o.fine ? f.kernels.linear.quantise_fine : f.kernels.linear.quantise;
    quantise(f.data(o.x), x.width, f.rows(o.x), x.width, first * x.multiple, last * x.multiple, f.work.activations.data());
}

bool per_output(const RowGroup& group, const Frame& f) {
    return std::visit(
        [&](const auto& o) {
            using Op = std::decay_t<decltype(o)>;
            if constexpr (std::is_same_v<Op, op::Quantise>)
                return f.value(o.x).per_output;
            else if constexpr (std::is_same_v<Op, op::WriteKv>)
                return false;
            else if constexpr (std::is_same_v<Op, op::Split>)
                return f.value(o.x).per_output;
            else
                return f.value(o.out).per_output;
        },
        group.ops.front());
}

} // namespace

void run_rows(const RowGroup& group, const Frame& frame, int64_t first, int64_t last) {
    for (const RowOp& row_op : group.ops) std::visit([&](const auto& o) { rows(o, frame, first, last); }, row_op);
}

void run(const RowGroup& group, const Frame& frame) {
    const int64_t n = per_output(group, frame) ? frame.num_outputs : frame.step.num_tokens;
    const int64_t threads = frame.pool.num_threads();
    if (threads == 1 || n == 1 || n * group.cost < kSerialFloats) return run_rows(group, frame, 0, n);
    const int64_t chunk = std::max((n + threads * 8 - 1) / (threads * 8), std::min(n, kSerialFloats / 4 / group.cost + 1));
    frame.pool.run((n + chunk - 1) / chunk,
                   [&](int64_t i, int) { run_rows(group, frame, i * chunk, std::min(n, (i + 1) * chunk)); });
}

} // namespace tuili
