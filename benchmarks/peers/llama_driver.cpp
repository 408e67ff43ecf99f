// Runs llama.cpp on given token ids, as its own llama-bench and llama-batched-bench do on random ones, and reports seconds:
// one command a line.
//
//   llama_driver MODEL THREADS CONTEXT
//   <- <flash> run PROMPT ID ...          the first PROMPT ids as one batch with logits of the last, then the rest one a time
//                                         -> ok SECONDS_PROMPT SECONDS_REST
//   <- <flash> batch SEQS PROMPT ID ...   SEQS prompts of PROMPT ids (sequence after sequence), then one id for each sequence
//                                         a step (step after step)      -> ok SECONDS_PROMPTS SECONDS_STEPS
//                                         (0 SECONDS_PROMPTS where the same prompts are still in the cache)
//   <- <flash> nll FIRST ID ...           minus the log-likelihood of the ids after position FIRST, summed, as llama-perplexity
//                                         counts it                     -> ok SUM
//   <- <flash> logits FILE ID ...         float32 [tokens, vocab] into FILE -> ok SECONDS
//
// <flash> is 0 or 1 (flash attention). Every other command begins with an empty cache. Anything else -> error MESSAGE.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

using Clock = std::chrono::steady_clock;
using Ids = std::vector<llama_token>;

static double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// As llama-bench makes it; with several sequences, as llama-batched-bench does: CONTEXT tokens for each.
static llama_context* make_context(llama_model* model, int threads, int context, bool flash, int sequences) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = uint32_t(context * sequences);
    params.n_seq_max = uint32_t(sequences);
    params.n_batch = 2048;
    params.n_ubatch = 512;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full = false;
    return llama_init_from_model(model, params);
}

// One llama_decode at most n_batch tokens long; tokens are added one by one.
class Batch {
  public:
    explicit Batch(int capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
    ~Batch() { llama_batch_free(batch_); }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    void add(llama_token id, int position, int sequence, bool logits) {
        const int i = batch_.n_tokens++;
        batch_.token[i] = id;
        batch_.pos[i] = position;
        batch_.n_seq_id[i] = 1;
        batch_.seq_id[i][0] = sequence;
        batch_.logits[i] = logits;
    }

    bool decode(llama_context* ctx) {
        const bool done = batch_.n_tokens == 0 || llama_decode(ctx, batch_) == 0;
        llama_synchronize(ctx);
        batch_.n_tokens = 0;
        return done;
    }

    int size() const { return batch_.n_tokens; }

  private:
    llama_batch batch_;
};

static bool decode(llama_context* ctx, llama_token* ids, size_t count) {
    if (llama_decode(ctx, llama_batch_get_one(ids, int32_t(count))) != 0) return false;
    llama_synchronize(ctx);
    return true;
}

static std::optional<std::string> seconds(double first, double second) {
    return std::to_string(first) + " " + std::to_string(second);
}

static std::optional<std::string> run_alone(llama_context* ctx, Ids& ids, size_t prompt) {
    if (prompt > ids.size()) return {};
    auto start = Clock::now();
    for (size_t i = 0; i < prompt; i += llama_n_batch(ctx))
        if (!decode(ctx, &ids[i], std::min<size_t>(llama_n_batch(ctx), prompt - i))) return {};
    const double prompt_seconds = seconds_since(start);
    start = Clock::now();
    for (size_t i = prompt; i < ids.size(); i++)
        if (!decode(ctx, &ids[i], 1)) return {};
    return seconds(prompt_seconds, seconds_since(start));
}

// Leaves the prompts alone in the cache; false when that is not possible.
static bool back_to_prompts(llama_context* ctx, int sequences, int prompt) {
    for (int sequence = 0; sequence < sequences; sequence++)
        if (!llama_memory_seq_rm(llama_get_memory(ctx), sequence, prompt, -1)) return false;
    return true;
}

static bool decode_prompts(llama_context* ctx, const Ids& ids, int sequences, int prompt) {
    Batch batch(int(llama_n_batch(ctx)));
    llama_memory_clear(llama_get_memory(ctx), false);
    for (int sequence = 0; sequence < sequences; sequence++) {
        for (int i = 0; i < prompt; i++) {
            batch.add(ids[size_t(sequence * prompt + i)], i, sequence, i == prompt - 1);
            if (batch.size() == int(llama_n_batch(ctx)) && !batch.decode(ctx)) return false;
        }
    }
    return batch.decode(ctx);
}

// `cached`: the prompts that are in this context's cache, kept between calls.
static std::optional<std::string> run_batch(llama_context* ctx, const Ids& ids, int sequences, int prompt, Ids& cached) {
    const size_t prompts = size_t(sequences) * size_t(prompt);
    if (ids.size() < prompts || (ids.size() - prompts) % size_t(sequences) != 0) return {};
    const Ids wanted(ids.begin(), ids.begin() + long(prompts));
    double prompt_seconds = 0;
    if (wanted != cached || !back_to_prompts(ctx, sequences, prompt)) {
        const auto start = Clock::now();
        cached.clear();
        if (!decode_prompts(ctx, ids, sequences, prompt)) return {};
        cached = wanted;
        prompt_seconds = seconds_since(start);
    }
    Batch batch(sequences);
    const auto start = Clock::now();
    for (size_t i = prompts, position = size_t(prompt); i < ids.size(); position++) {
        for (int sequence = 0; sequence < sequences; sequence++) batch.add(ids[i++], int(position), sequence, true);
        if (!batch.decode(ctx)) return {};
    }
    return seconds(prompt_seconds, seconds_since(start));
}

static bool decode_all_logits(llama_context* ctx, const Ids& ids) {
    Batch batch{int(ids.size())};
    for (size_t i = 0; i < ids.size(); i++) batch.add(ids[i], int(i), 0, true);
    return batch.decode(ctx);
}

static size_t vocab_of(llama_context* ctx) { return size_t(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)))); }

static std::optional<std::string> run_nll(llama_context* ctx, const Ids& ids, size_t first) {
    if (!decode_all_logits(ctx, ids)) return {};
    double sum = 0;
    for (size_t i = first; i + 1 < ids.size(); i++) {
        const float* logits = llama_get_logits_ith(ctx, int32_t(i));
        float most = logits[0];
        for (size_t token = 0; token < vocab_of(ctx); token++) most = std::max(most, logits[token]);
        double total = 0;
        for (size_t token = 0; token < vocab_of(ctx); token++) total += std::exp(double(logits[token] - most));
        sum += std::log(total) - double(logits[ids[i + 1]] - most);
    }
    return std::to_string(sum);
}

static std::optional<std::string> run_logits(llama_context* ctx, const Ids& ids, const std::string& path) {
    const auto start = Clock::now();
    if (!decode_all_logits(ctx, ids)) return {};
    FILE* file = std::fopen(path.c_str(), "wb");
    bool done = file != nullptr;
    for (size_t i = 0; done && i < ids.size(); i++)
        done = std::fwrite(llama_get_logits_ith(ctx, int32_t(i)), sizeof(float), vocab_of(ctx), file) == vocab_of(ctx);
    if (file) std::fclose(file);
    if (!done) return {};
    return std::to_string(seconds_since(start));
}

struct Context {
    llama_context* ctx = nullptr;
    Ids cached; // by run_batch
};

// The contexts of one model, made when first asked for; only those of the last number of sequences are kept.
class Contexts {
  public:
    Contexts(llama_model* model, int threads, int context) : model_(model), threads_(threads), context_(context) {}
    ~Contexts() { clear(); }
    Contexts(const Contexts&) = delete;
    Contexts& operator=(const Contexts&) = delete;

    // Null where it could not be made.
    Context* get(bool flash, int sequences) {
        if (sequences != sequences_) clear();
        sequences_ = sequences;
        Context& context = made_[flash];
        if (!context.ctx) context.ctx = make_context(model_, threads_, context_, flash, sequences);
        return context.ctx ? &context : nullptr;
    }

  private:
    void clear() {
        for (auto& [flash, context] : made_) llama_free(context.ctx);
        made_.clear();
    }

    llama_model* model_;
    int threads_, context_, sequences_ = 1;
    std::map<bool, Context> made_;
};

static std::optional<std::string> answer(Contexts& contexts, std::istringstream& line) {
    int flash = 0, sequences = 1;
    std::string command, path;
    size_t number = 0;
    line >> flash >> command;
    if (command == "batch") line >> sequences;
    if (command == "logits") {
        line >> path;
    } else {
        line >> number;
    }
    Ids ids;
    for (llama_token id; line >> id;) ids.push_back(id);
    Context* context = ids.empty() || sequences < 1 ? nullptr : contexts.get(flash != 0, sequences);
    if (!context) return {};
    if (command == "batch") return run_batch(context->ctx, ids, sequences, int(number), context->cached);
    context->cached.clear();
    llama_memory_clear(llama_get_memory(context->ctx), false);
    if (command == "run") return run_alone(context->ctx, ids, number);
    if (command == "nll") return run_nll(context->ctx, ids, number);
    if (command == "logits") return run_logits(context->ctx, ids, path);
    return {};
}

int main(int argc, char** argv) {
    if (argc != 4) return std::fprintf(stderr, "usage: llama_driver MODEL THREADS CONTEXT\n"), 2;
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();
    llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    {
        Contexts contexts(model, std::atoi(argv[2]), std::atoi(argv[3]));
        std::cout << "ready" << std::endl;
        for (std::string text; std::getline(std::cin, text);) {
            std::istringstream line(text);
            const std::optional<std::string> result = answer(contexts, line);
            if (result)
                std::cout << "ok " << *result << std::endl;
            else
                std::cout << "error in: " << text.substr(0, 60) << std::endl;
        }
    }
    llama_model_free(model);
    return 0;
}
