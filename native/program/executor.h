// Runs a plan: one call a step.
#pragma once
#include "program/frame.h"
#include "program/packed_weights.h"
#include "program/profile.h"
#include "sample/sampler.h"
#include <memory>

namespace tuili {

class Executor {
  public:
    // `cpus`: see ThreadPool.
    Executor(Isa isa, int num_threads, const std::vector<int>& cpus);

    // Loading: weights are packed while the plan is being filled, then finish() makes room for the steps.
    Plan& plan() { return plan_; }
    const Kernels& kernels() const { return kernels_; }
    ThreadPool& pool() { return pool_; }
    PackedWeights& weights() { return weights_; }
    void finish(const Limits& limits);

    // The output rows of one step, [num_outputs, output width].
    void run(const Step& step, float* out);
    // One step, its output rows taken as logits and sampled.
    void sample(const Step& step, const SamplingBatch& batch, const SamplingResult& result);

    void read_blocks(int64_t group, const int32_t* blocks, int64_t n, uint8_t* out) const;
    void write_blocks(int64_t group, const int32_t* blocks, int64_t n, const uint8_t* data);
    size_t arena_bytes() const;

    // From the next step on, times are kept. After finish().
    void start_profile();
    const Profile* profile() const { return profile_.get(); } // null when none is kept

  private:
    template <class Consume>
    void run_pieces(Frame& frame, StepTimings* timings, Consume consume);
    size_t activation_bytes() const;
    void fill_rope_tables(const Frame& frame);
    void sample_rows(const Frame& frame, const SamplingBatch& batch, const SamplingResult& result);
    StepTimings* timings_of(const Step& step) const;

    Kernels kernels_;
    ThreadPool pool_;
    Plan plan_;
    PackedWeights weights_;
    Workspace work_;
    Limits limits_{};
    std::unique_ptr<Profile> profile_;
};

} // namespace tuili
