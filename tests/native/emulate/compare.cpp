// Runs the AVX-512 kernels (emulated) and the generic ones on the same random matrices; prints what differs, or "equal".
#include "kernels/linear.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

using namespace tuili;

namespace {

struct Case {
    Format format;
    const char* name;
    int64_t block_cols, block_bytes;
    std::vector<int> halves; // where a block keeps f16 numbers
};

const std::vector<Case> kCases = {
    {Format::Q4_0, "Q4_0", 32, 18, {0}},       {Format::Q4_1, "Q4_1", 32, 20, {0, 2}},
    {Format::Q5_0, "Q5_0", 32, 22, {0}},       {Format::Q5_1, "Q5_1", 32, 24, {0, 2}},
    {Format::Q8_0, "Q8_0", 32, 34, {0}},       {Format::IQ4_NL, "IQ4_NL", 32, 18, {0}},
    {Format::MXFP4, "MXFP4", 32, 17, {}},      {Format::Q2_K, "Q2_K", 256, 84, {80, 82}},
    {Format::Q3_K, "Q3_K", 256, 110, {108}},   {Format::Q4_K, "Q4_K", 256, 144, {0, 2}},
    {Format::Q5_K, "Q5_K", 256, 176, {0, 2}},  {Format::Q6_K, "Q6_K", 256, 210, {208}},
    {Format::IQ4_XS, "IQ4_XS", 256, 136, {0}}, {Format::F16, "F16", 1, 2, {0}},
    {Format::BF16, "BF16", 1, 2, {}},          {Format::F32, "F32", 1, 4, {}},
};

using Buffer = std::unique_ptr<uint8_t, decltype(&std::free)>;
Buffer buffer(size_t bytes) { return {static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64)), &std::free}; }

std::vector<uint8_t> random_rows(const Case& c, int64_t rows, int64_t cols, std::mt19937& rng) {
    std::vector<uint8_t> data(static_cast<size_t>(rows * cols / c.block_cols * c.block_bytes));
    for (size_t block = 0; block < data.size(); block += static_cast<size_t>(c.block_bytes)) {
        for (int64_t i = 0; i < c.block_bytes; i++) data[block + static_cast<size_t>(i)] = static_cast<uint8_t>(rng());
        for (int at : c.halves)
            data[block + static_cast<size_t>(at) + 1] = static_cast<uint8_t>(0x18 + rng() % 8); // about 0.002 .. 0.007
        if (c.format == Format::MXFP4) data[block] = static_cast<uint8_t>(110 + rng() % 16);
        if (c.format == Format::BF16) data[block + 1] = static_cast<uint8_t>(0x3c + rng() % 4);
        if (c.format == Format::F32) data[block + 3] = static_cast<uint8_t>(0x3c + rng() % 4);
    }
    return data;
}

std::vector<float> multiply(const LinearKernels& k, const Case& c, const std::vector<uint8_t>& data, int64_t rows, int64_t cols,
                            const std::vector<float>& x, int64_t tokens, bool gated) {
    PackedMatrix w{c.format, rows, cols, k.tile_bytes(c.format, cols), nullptr};
    Buffer packed = buffer(w.tile_bytes * static_cast<size_t>(w.num_tiles()));
    w.data = packed.get();
    k.pack(c.format, data.data(), data.size() / static_cast<size_t>(rows), nullptr, rows, cols, 0, w.num_tiles(), packed.get());
    Buffer acts = buffer(k.activation_bytes(2 * tokens, cols)), scratch = buffer(k.scratch_bytes(cols));
    std::memset(acts.get(), 0, k.activation_bytes(2 * tokens, cols));
    const auto quantise = gated ? k.quantise : k.quantise_fine;
    if (k.reads_acts(c.format)) quantise(x.data(), cols, tokens, cols, 0, tokens, acts.get());
    std::vector<float> out(static_cast<size_t>(tokens * rows));
    const LinearArgs args{&w,      nullptr, x.data(), cols,          acts.get(), tokens, !gated,       nullptr,
                          nullptr, tokens,  0,        w.num_tiles(), out.data(), rows,   scratch.get()};
    if (gated)
        k.gate_up_act(args, w, nullptr, Act::gelu_tanh);
    else
        k.linear(args);
    std::vector<float> row(static_cast<size_t>(cols));
    k.unpack_row(w, rows - 1, row.data());
    out.insert(out.end(), row.begin(), row.end());
    k.decode_row(c.format, data.data() + data.size() / static_cast<size_t>(rows) * static_cast<size_t>(rows - 1), cols,
                 row.data());
    out.insert(out.end(), row.begin(), row.end());
    return out;
}

} // namespace

int main() {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    bool equal = true;
    for (const Case& c : kCases)
        for (int64_t tokens : {1, 2, 3, 5, 8, 9, 37, 50})
            for (bool gated : {false, true}) {
                const int64_t rows = 21, cols = c.block_cols == 256 ? 1280 : 1120;
                const auto data = random_rows(c, rows, cols, rng);
                std::vector<float> x(static_cast<size_t>(tokens * cols));
                for (float& v : x) v = normal(rng);
                const auto a = multiply(linear_generic(), c, data, rows, cols, x, tokens, gated);
                const auto b = multiply(linear_avx512(), c, data, rows, cols, x, tokens, gated);
                if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) {
                    std::printf("%s differs, %d rows, gated %d\n", c.name, static_cast<int>(tokens), gated);
                    equal = false;
                }
            }
    if (equal) std::puts("equal");
    return equal ? 0 : 1;
}
