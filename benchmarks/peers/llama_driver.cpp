// Runs llama.cpp on given token ids, as its own llama-bench does on random ones, and reports seconds: one command a line.
//
//   llama_driver MODEL THREADS CONTEXT
//   <- <flash> prompt ID ...        one batch, logits of the last token     -> ok SECONDS
//   <- <flash> generate ID ...      one token at a time, logits of each     -> ok SECONDS
//   <- <flash> logits FILE ID ...   float32 [tokens, vocab] into FILE       -> ok SECONDS
//
// <flash> is 0 or 1 (flash attention). Every command begins with an empty cache. Anything else -> error MESSAGE.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

using Clock = std::chrono::steady_clock;

static llama_context* make_context(llama_model* model, int threads, int context, bool flash) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = context;
    params.n_batch = 512;
    params.n_ubatch = 512;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full = false; // as llama-bench
    return llama_init_from_model(model, params);
}

static bool decode(llama_context* ctx, llama_token* ids, int count) {
    if (llama_decode(ctx, llama_batch_get_one(ids, count)) != 0) return false;
    llama_synchronize(ctx);
    return true;
}

static bool run_prompt(llama_context* ctx, std::vector<llama_token>& ids) { return decode(ctx, ids.data(), int(ids.size())); }

static bool run_generate(llama_context* ctx, std::vector<llama_token>& ids) {
    for (llama_token& id : ids)
        if (!decode(ctx, &id, 1)) return false;
    return true;
}

static bool run_logits(llama_context* ctx, std::vector<llama_token>& ids, const std::string& path) {
    const size_t vocab = size_t(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))));
    llama_batch batch = llama_batch_init(int32_t(ids.size()), 0, 1);
    for (size_t i = 0; i < ids.size(); i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = llama_pos(i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = int32_t(ids.size());
    bool done = llama_decode(ctx, batch) == 0;
    llama_synchronize(ctx);
    FILE* file = done ? std::fopen(path.c_str(), "wb") : nullptr;
    for (size_t i = 0; file && done && i < ids.size(); i++)
        done = std::fwrite(llama_get_logits_ith(ctx, int32_t(i)), sizeof(float), vocab, file) == vocab;
    if (file) std::fclose(file);
    llama_batch_free(batch);
    return file && done;
}

static bool run(llama_context* ctx, const std::string& command, std::istringstream& rest) {
    std::string path;
    if (command == "logits") rest >> path;
    std::vector<llama_token> ids;
    for (llama_token id; rest >> id;) ids.push_back(id);
    if (ids.empty()) return false;
    llama_memory_clear(llama_get_memory(ctx), false);
    if (command == "prompt") return run_prompt(ctx, ids);
    if (command == "generate") return run_generate(ctx, ids);
    return command == "logits" && run_logits(ctx, ids, path);
}

int main(int argc, char** argv) {
    if (argc != 4) return std::fprintf(stderr, "usage: llama_driver MODEL THREADS CONTEXT\n"), 2;
    llama_log_set([](ggml_log_level level, const char* text, void*) { if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr); },
                  nullptr);
    llama_backend_init();
    llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    std::map<int, llama_context*> contexts;
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream rest(line);
        int flash = 0;
        std::string command;
        rest >> flash >> command;
        llama_context*& ctx = contexts[flash != 0];
        if (!ctx) ctx = make_context(model, std::atoi(argv[2]), std::atoi(argv[3]), flash != 0);
        const auto start = Clock::now();
        const bool done = ctx && run(ctx, command, rest);
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        if (done) std::cout << "ok " << seconds << std::endl;
        else std::cout << "error in: " << line.substr(0, 60) << std::endl;
    }
    for (auto& [flash, ctx] : contexts) llama_free(ctx);
    llama_model_free(model);
    return 0;
}
