// Steps: the arrays of a StepInput and a SamplingBatch (backends/base.py) as what the executor computes.
#include "bind/arrays.h"
#include "bind/bind.h"
#include "program/executor.h"
#include <algorithm>
#include <array>
#include <utility>

namespace tuili {

namespace {

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
    b.mask_index = f.vector<int32_t>("mask_index", rows);
    const auto masks = f.matrix<uint32_t>("masks");
    b.masks = masks.data;
    b.num_masks = masks.rows;
    b.mask_words = masks.cols;
    return b;
}

using OutIds = Array1<int32_t>;
using OutFloats = Array1<float>;

SamplingResult result_of(const OutIds& token_ids, const OutFloats& logprobs, const Array2<int32_t>& top_ids,
                         const Array2<float>& top_logprobs, size_t rows) {
    const auto widest = static_cast<int64_t>(top_ids.shape(1));
    if (token_ids.shape(0) != rows || logprobs.shape(0) != rows || top_ids.shape(0) != rows || top_logprobs.shape(0) != rows ||
        top_logprobs.shape(1) != top_ids.shape(1))
        throw std::invalid_argument("result arrays do not fit the rows");
    return {token_ids.data(), logprobs.data(), top_ids.data(), top_logprobs.data(), widest};
}

void check_room(const SamplingBatch& batch, size_t rows, int64_t max_logprobs) {
    for (size_t r = 0; r < rows; r++)
        if (batch.num_logprobs[r] > max_logprobs)
            throw std::invalid_argument("more alternatives asked for than the result has room for");
}

// One step's arrays as typed pointers. They are looked up once, and computed as often as the same arrays hold another step: that
// is what generation does from one token to the next, and thirty look-ups take longer than some ops of a small model.
class BoundStep {
  public:
    BoundStep(Executor& e, nb::handle step, nb::handle sampling, OutIds token_ids, OutFloats logprobs, Array2<int32_t> top_ids,
              Array2<float> top_logprobs)
        : step_fields_(step), batch_fields_(sampling), token_ids_(std::move(token_ids)), logprobs_(std::move(logprobs)),
          top_ids_(std::move(top_ids)), top_logprobs_(std::move(top_logprobs)), step_(step_of(step_fields_, step, e.plan())),
          batch_(batch_of(batch_fields_, static_cast<size_t>(step_.num_outputs))),
          result_(result_of(token_ids_, logprobs_, top_ids_, top_logprobs_, static_cast<size_t>(step_.num_outputs))),
          list_ends_(list_ends()) {}

    // What the arrays hold now; call it with the GIL.
    void check_contents() const {
        if (list_ends() != list_ends_) throw std::invalid_argument("lists of a bound step have changed their lengths");
        check_room(batch_, static_cast<size_t>(step_.num_outputs), result_.max_logprobs);
    }
    void sample(Executor& e) const { e.sample(step_, batch_, result_); }

  private:
    std::array<int32_t, 3> list_ends() const {
        const auto rows = static_cast<size_t>(step_.num_outputs);
        return {batch_.bias_start[rows], batch_.penalty_start[rows], batch_.allowed_start[rows]};
    }

    Fields step_fields_, batch_fields_;
    OutIds token_ids_;
    OutFloats logprobs_;
    Array2<int32_t> top_ids_;
    Array2<float> top_logprobs_;
    Step step_;
    SamplingBatch batch_;
    SamplingResult result_;
    std::array<int32_t, 3> list_ends_;
};

void sample_step(Executor& e, const BoundStep& step) {
    step.check_contents();
    nb::gil_scoped_release unlocked;
    step.sample(e);
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
    const SamplingResult result = result_of(token_ids, logprobs, top_ids, top_logprobs, rows);
    check_room(batch, rows, result.max_logprobs);
    const OpKernels& kernels = kernels_of(static_cast<Isa>(isa)).ops;
    nb::gil_scoped_release unlocked;
    for (size_t r = 0; r < rows; r++) {
        float* const row = logits.data() + static_cast<int64_t>(r) * width;
        sample_row(kernels, row, width, kernels.row_maximum(row, width), batch, static_cast<int64_t>(r), result);
    }
}

} // namespace

void bind_steps(nb::module_& m, nb::class_<Executor>& c) {
    using namespace nb::literals;
    nb::class_<BoundStep>(m, "BoundStep")
        .def(nb::init<Executor&, nb::handle, nb::handle, OutIds, OutFloats, Array2<int32_t>, Array2<float>>(), "executor"_a,
             "step"_a, "sampling"_a, "token_ids"_a, "logprobs"_a, "top_ids"_a, "top_logprobs"_a);
    c.def("sample", &sample_step, "step"_a);
    c.def("run", &run_step, "step"_a, "out"_a);
    m.def("sample_logits", &sample_logits, "isa"_a, "logits"_a, "sampling"_a, "token_ids"_a, "logprobs"_a, "top_ids"_a,
          "top_logprobs"_a);
}

} // namespace tuili
