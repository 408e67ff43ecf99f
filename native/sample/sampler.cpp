#include "sample/sampler.h"
#include "sample/noise.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace tuili {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kFewTokens = 64;
constexpr int64_t kRun = 256; // columns that share one maximum when the top k are looked for

struct Candidate {
    float logit;
    int32_t id;
};

bool likelier(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

void check_list(const int32_t* start, const int32_t* ids, int64_t num_rows, int64_t vocab_size, const char* name) {
    for (int64_t r = 0; r < num_rows; r++)
        if (start[r] < 0 || start[r] > start[r + 1]) throw std::invalid_argument(std::string(name) + ": starts do not ascend");
    for (int32_t i = start[0]; i < start[num_rows]; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size)
            throw std::invalid_argument(std::string(name) + ": token id " + std::to_string(ids[i]) + " is not in [0, " +
                                        std::to_string(vocab_size) + ")");
}

// One row on its way from logits to a token.
class Row {
  public:
    Row(const OpKernels& kernels, float* logits, int64_t n, const SamplingBatch& batch, int64_t row, const SamplingResult& result)
        : k_(kernels), x_(logits), n_(n), b_(batch), r_(row), out_(result) {}

    void run(const RowMaximum& raw) {
        const int64_t num_logprobs = b_.num_logprobs[r_];
        clear_output();
        if (raw.invalid || raw.value == -kInfinity) return;
        const int32_t target = b_.target[r_];
        const double log_total = num_logprobs >= 0 ? std::log(k_.sum_exp(x_, n_, raw.value, 1.0f)) : 0.0;
        const auto logprob = [&](float logit) {
            return static_cast<float>(static_cast<double>(logit) - static_cast<double>(raw.value) - log_total);
        };
        if (num_logprobs > 0) write_top(num_logprobs, logprob);
        if (target >= 0) {
            out_.token_ids[r_] = target;
            if (num_logprobs >= 0) out_.logprobs[r_] = logprob(x_[target]);
            return;
        }
        apply_mask();
        apply_bias();
        apply_penalties();
        const int32_t token = choose(raw);
        out_.token_ids[r_] = token;
        undo();
        if (num_logprobs >= 0 && token >= 0) out_.logprobs[r_] = logprob(x_[token]);
    }

  private:
    void clear_output() const {
        out_.token_ids[r_] = -1;
        out_.logprobs[r_] = 0.0f;
        std::fill_n(out_.top_ids + r_ * out_.max_logprobs, out_.max_logprobs, -1);
        std::fill_n(out_.top_logprobs + r_ * out_.max_logprobs, out_.max_logprobs, 0.0f);
    }

    template <class F>
    void write_top(int64_t count, F logprob) {
        const std::vector<Candidate> top = top_k(count);
        const int64_t at = r_ * out_.max_logprobs;
        for (size_t i = 0; i < top.size(); i++) {
            out_.top_ids[at + static_cast<int64_t>(i)] = top[i].id;
            out_.top_logprobs[at + static_cast<int64_t>(i)] = logprob(top[i].logit);
        }
    }

    void change(int32_t id, float logit) {
        changes_.push_back({x_[id], id});
        x_[id] = logit;
    }

    void undo() {
        for (auto c = changes_.rbegin(); c != changes_.rend(); ++c) x_[c->id] = c->logit;
    }

    // What the mask lacks, and what lies beyond its end, becomes impossible. This is not undone: a token that is chosen was
    // never touched by it.
    void apply_mask() {
        if (b_.mask_index[r_] < 0) return;
        const uint32_t* words = b_.masks + b_.mask_index[r_] * b_.mask_words;
        const int64_t covered = std::min(n_, b_.mask_words * 32);
        for (int64_t first = 0; first < covered; first += 32) {
            const uint32_t word = words[first / 32];
            if (word == ~0u) continue;
            const int64_t end = std::min<int64_t>(first + 32, covered);
            for (int64_t i = first; i < end; i++) x_[i] = word >> (i - first) & 1 ? x_[i] : -kInfinity;
        }
        std::fill(x_ + covered, x_ + n_, -kInfinity);
    }

    void apply_bias() {
        for (int32_t i = b_.bias_start[r_]; i < b_.bias_start[r_ + 1]; i++)
            change(b_.bias_ids[i], x_[b_.bias_ids[i]] + b_.bias_values[i]);
    }

    void apply_penalties() {
        const float repetition = b_.repetition_penalty[r_], presence = b_.presence_penalty[r_],
                    frequency = b_.frequency_penalty[r_];
        if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return;
        for (int32_t i = b_.penalty_start[r_]; i < b_.penalty_start[r_ + 1]; i++) {
            const int32_t id = b_.penalty_ids[i], count = b_.penalty_counts[i];
            float logit = x_[id];
            if (repetition != 1.0f) logit = logit > 0 ? logit / repetition : logit * repetition;
            logit = logit - frequency * static_cast<float>(count);
            if (count > 0) logit = logit - presence;
            change(id, logit);
        }
    }

    // The maximum of the changed logits, known without another scan unless the largest itself was changed.
    RowMaximum changed_maximum(const RowMaximum& raw) const {
        if (b_.mask_index[r_] >= 0) return k_.row_maximum(x_, n_);
        RowMaximum top = raw;
        for (const Candidate& change : changes_) {
            const float logit = x_[change.id];
            if (change.id == raw.index || !(logit < kInfinity)) return k_.row_maximum(x_, n_);
            if (logit > top.value || (logit == top.value && change.id < top.index)) top = {logit, change.id, false};
        }
        return top;
    }

    int32_t choose(const RowMaximum& raw) {
        const bool greedy = b_.temperature[r_] == 0.0f || b_.top_p[r_] == 0.0f;
        if (b_.allowed_start[r_] < b_.allowed_start[r_ + 1]) return choose_allowed(greedy);
        const RowMaximum top = changed_maximum(raw);
        if (top.invalid || top.value == -kInfinity) return -1;
        if (greedy) return top.index;
        const int64_t limit = b_.top_k[r_] > 0 ? std::min<int64_t>(b_.top_k[r_], n_) : n_;
        if (limit == 1) return top.index;
        if (limit == n_) return b_.top_p[r_] < 1.0f ? draw_top_p(top) : draw_from_all(top, {-kInfinity, 0});
        std::vector<Candidate> kept = top_k(limit);
        if (b_.top_p[r_] < 1.0f) kept = keep_top_p(std::move(kept));
        return draw(kept);
    }

    int32_t choose_allowed(bool greedy) {
        std::vector<Candidate> kept;
        for (int32_t i = b_.allowed_start[r_]; i < b_.allowed_start[r_ + 1]; i++) {
            const int32_t id = b_.allowed_ids[i];
            if (std::isnan(x_[id]) || x_[id] == kInfinity) return -1;
            if (x_[id] > -kInfinity) kept.push_back({x_[id], id});
        }
        std::sort(kept.begin(), kept.end(), likelier);
        kept.erase(std::unique(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.id == b.id; }),
                   kept.end());
        if (kept.empty()) return -1;
        if (greedy) return kept[0].id;
        const int64_t limit = b_.top_k[r_];
        if (limit > 0 && limit < static_cast<int64_t>(kept.size())) kept.resize(static_cast<size_t>(limit));
        if (b_.top_p[r_] < 1.0f) kept = keep_top_p(std::move(kept));
        return draw(kept);
    }

    // The `count` likeliest tokens, in order; fewer when others are impossible.
    std::vector<Candidate> top_k(int64_t count) const {
        const int64_t runs = (n_ + kRun - 1) / kRun;
        float threshold = -std::numeric_limits<float>::max();
        if (count <= runs) { // at least `count` tokens reach the count-th largest of the runs' maxima
            std::vector<float> maxima(static_cast<size_t>(runs));
            k_.run_maxima(x_, n_, kRun, maxima.data());
            std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<>());
            threshold = std::max(threshold, maxima[static_cast<size_t>(count - 1)]);
        }
        std::vector<int32_t> ids(static_cast<size_t>(n_));
        ids.resize(static_cast<size_t>(k_.find_at_least(x_, n_, threshold, ids.data())));
        std::vector<Candidate> found;
        found.reserve(ids.size());
        for (const int32_t id : ids) found.push_back({x_[id], id});
        if (count < static_cast<int64_t>(found.size())) {
            std::nth_element(found.begin(), found.begin() + (count - 1), found.end(), likelier);
            found.resize(static_cast<size_t>(count));
        }
        std::sort(found.begin(), found.end(), likelier);
        return found;
    }

    double relative_probability(float logit, float maximum) const {
        return std::exp((static_cast<double>(logit) - static_cast<double>(maximum)) / static_cast<double>(b_.temperature[r_]));
    }

    // The fewest of the sorted candidates that reach `goal`; all of them when they do not.
    bool keep_until(std::vector<Candidate>& sorted, double goal) const {
        double sum = 0;
        for (size_t i = 0; i < sorted.size(); i++) {
            sum += relative_probability(sorted[i].logit, sorted[0].logit);
            if (sum >= goal) {
                sorted.resize(i + 1);
                return true;
            }
        }
        return false;
    }

    std::vector<Candidate> keep_top_p(std::vector<Candidate> sorted) const {
        double total = 0;
        for (const Candidate& c : sorted) total += relative_probability(c.logit, sorted[0].logit);
        keep_until(sorted, total * static_cast<double>(b_.top_p[r_]));
        return sorted;
    }

    // Mostly a few tokens are enough; if not, the cut is looked for in the whole vocabulary.
    int32_t draw_top_p(const RowMaximum& top) const {
        std::vector<Candidate> likeliest = top_k(std::min<int64_t>(kFewTokens, n_));
        const double total = k_.sum_exp(x_, n_, top.value, inverse_temperature());
        if (keep_until(likeliest, total * static_cast<double>(b_.top_p[r_]))) return draw(likeliest);
        return draw_from_all(top, last_of_top_p(top));
    }

    // The least likely token that top_p of the whole vocabulary keeps. Probability is first summed by distance from the maximum,
    // so that only the bin where the sum is reached has to be sorted.
    Candidate last_of_top_p(const RowMaximum& top) const {
        const float factor = inverse_temperature();
        std::vector<double> mass(kMassBins);
        k_.mass_by_distance(x_, n_, top.value, factor, mass.data());
        const double goal = std::accumulate(mass.begin(), mass.end(), 0.0) * static_cast<double>(b_.top_p[r_]);
        int bin = 0;
        double sum = 0;
        while (bin < kMassBins - 1 && sum + mass[static_cast<size_t>(bin)] < goal) sum += mass[static_cast<size_t>(bin++)];
        const std::vector<Candidate> sorted = sorted_bin(top.value, factor, bin);
        for (const Candidate& c : sorted) {
            sum += relative_probability(c.logit, top.value);
            if (sum >= goal) return c;
        }
        return sorted.empty() ? Candidate{top.value, top.index} : sorted.back();
    }

    std::vector<Candidate> sorted_bin(float maximum, float factor, int bin) const {
        std::vector<Candidate> found;
        for (int64_t i = 0; i < n_; i++)
            if (x_[i] > -kInfinity && mass_bin((maximum - x_[i]) * factor) == bin)
                found.push_back({x_[i], static_cast<int32_t>(i)});
        std::sort(found.begin(), found.end(), likelier);
        return found;
    }

    // Finite even for the smallest temperatures: differences of logits times it stay numbers.
    float inverse_temperature() const { return std::min(1.0f / b_.temperature[r_], 1e30f); }

    double score(float logit, float maximum, int32_t id) const {
        const double scaled =
            (static_cast<double>(logit) - static_cast<double>(maximum)) / static_cast<double>(b_.temperature[r_]);
        return scaled + gumbel_noise(key_, static_cast<uint32_t>(id));
    }

    bool passes_min_p(float logit, float maximum) const {
        const float min_p = b_.min_p[r_];
        return min_p <= 0.0f || relative_probability(logit, maximum) >= static_cast<double>(min_p);
    }

    // Gumbel-max over sorted candidates.
    int32_t draw(const std::vector<Candidate>& sorted) const {
        const float maximum = sorted[0].logit;
        int32_t best = -1;
        double best_score = 0;
        for (const Candidate& c : sorted) {
            if (!passes_min_p(c.logit, maximum)) break;
            const double s = score(c.logit, maximum, c.id);
            if (best < 0 || s > best_score || (s == best_score && c.id < best)) best = c.id, best_score = s;
        }
        return best;
    }

    // Gumbel-max over all tokens down to `last`: only those whose noise can lift them above the best so far are looked at.
    int32_t draw_from_all(const RowMaximum& top, const Candidate& last) const {
        int32_t best = top.index;
        double best_score = score(top.value, top.value, top.index);
        int32_t ids[1024];
        for (int64_t first = 0; first < n_;) {
            const int64_t count = k_.find_noisy(x_, n_, top.value, inverse_temperature(), best_score, key_, first, ids, 1024);
            for (int64_t i = 0; i < count; i++) {
                const float logit = x_[ids[i]];
                if (logit == -kInfinity || likelier(last, {logit, ids[i]}) || !passes_min_p(logit, top.value)) continue;
                const double s = score(logit, top.value, ids[i]);
                if (s > best_score || (s == best_score && ids[i] < best)) best = ids[i], best_score = s;
            }
        }
        return best;
    }

    const OpKernels& k_;
    float* x_;
    const int64_t n_;
    const SamplingBatch& b_;
    const int64_t r_;
    const SamplingResult& out_;
    const uint64_t key_ = noise_key(b_.seed[r_], b_.sequence[r_], b_.position[r_]);
    std::vector<Candidate> changes_; // what the logits were before
};

} // namespace

void check(const SamplingBatch& batch, int64_t num_rows, int64_t vocab_size) {
    check_list(batch.bias_start, batch.bias_ids, num_rows, vocab_size, "bias");
    check_list(batch.penalty_start, batch.penalty_ids, num_rows, vocab_size, "penalty");
    check_list(batch.allowed_start, batch.allowed_ids, num_rows, vocab_size, "allowed");
    for (int64_t r = 0; r < num_rows; r++)
        if (batch.target[r] >= vocab_size) throw std::invalid_argument("target: token id outside the vocabulary");
    for (int64_t r = 0; r < num_rows; r++)
        if (batch.mask_index[r] >= batch.num_masks) throw std::invalid_argument("mask_index: there is no such mask");
}

void sample_row(const OpKernels& kernels, float* logits, int64_t vocab_size, const RowMaximum& maximum,
                const SamplingBatch& batch, int64_t row, const SamplingResult& result) {
    Row(kernels, logits, vocab_size, batch, row, result).run(maximum);
}

} // namespace tuili
