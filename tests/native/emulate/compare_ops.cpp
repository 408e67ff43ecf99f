// Runs the AVX-512 kernels of ops.h (emulated) and the generic ones on the same random rows; prints what differs, or "equal".
#include "kernels/ops.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

using namespace tuili;
using Floats = std::vector<float>;

namespace {

std::mt19937 rng(11);

Floats random(int64_t n, float size) {
    std::normal_distribution<float> normal(0.0f, size);
    Floats x(static_cast<size_t>(n));
    for (float& v : x) v = normal(rng);
    return x;
}

void append(Floats& out, const Floats& more) { out.insert(out.end(), more.begin(), more.end()); }

struct Rows {
    Floats a = random(333, 3), b = random(333, 3), weight = random(333, 1), far = random(333, 60);
};

Floats rows(const OpKernels& k, const Rows& r) {
    const int64_t n = static_cast<int64_t>(r.a.size());
    Floats out, y(r.a.size());
    const auto keep = [&] { append(out, y); };
    k.rms_norm(r.a.data(), r.weight.data(), y.data(), n, 111, 1e-5f), keep();
    k.layer_norm(r.a.data(), r.weight.data(), r.b.data(), y.data(), n, 37, 1e-5f), keep();
    k.add(r.a.data(), r.b.data(), y.data(), n), keep();
    k.scale(r.a.data(), 1.7f, y.data(), n), keep();
    k.softcap(r.far.data(), 30.0f, y.data(), n), keep();
    for (Act act : {Act::silu, Act::gelu_tanh, Act::gelu})
        for (const Floats& gate : {r.a, r.far}) k.act_mul(act, gate.data(), r.b.data(), y.data(), n), keep();
    k.weighted_sum(r.a.data(), r.b.data(), 3, y.data(), 111), keep();
    k.softmax(r.far.data(), y.data(), n), keep();
    k.sigmoid(r.far.data(), y.data(), n), keep();
    k.rope(r.a.data(), r.b.data(), r.weight.data(), y.data(), 3, 111, 72), keep();
    return out;
}

Floats scans(const OpKernels& k, const Rows& r) {
    const int64_t n = static_cast<int64_t>(r.far.size());
    const RowMaximum top = k.row_maximum(r.far.data(), n);
    Floats out = {top.value, static_cast<float>(top.index), static_cast<float>(k.sum_exp(r.far.data(), n, top.value, 0.1f))};
    Floats maxima(8);
    k.run_maxima(r.far.data(), n, 48, maxima.data());
    append(out, maxima);
    std::vector<double> mass(kMassBins);
    k.mass_by_distance(r.far.data(), n, top.value, 0.2f, mass.data());
    for (double m : mass) out.push_back(static_cast<float>(m));
    std::vector<int32_t> ids(static_cast<size_t>(n));
    const int64_t found = k.find_at_least(r.far.data(), n, 40.0f, ids.data());
    for (int64_t i = 0; i < found; i++) out.push_back(static_cast<float>(ids[static_cast<size_t>(i)]));
    for (int64_t first = 0; first < n;) {
        const int64_t count = k.find_noisy(r.far.data(), n, top.value, 0.05f, 1.0, 99, first, ids.data(), 40);
        for (int64_t i = 0; i < count; i++) out.push_back(static_cast<float>(ids[static_cast<size_t>(i)]));
    }
    return out;
}

struct Attention {
    int head_dim, heads, queries;
    int64_t position, window;
    float softcap;
};

Floats attention(const OpKernels& k, const Attention& a, const Floats& q, const Floats& keys, const Floats& values) {
    const int64_t tokens = a.position + a.queries, side = 16 * a.head_dim;
    std::vector<int32_t> table;
    for (int64_t i = 0; i * 16 < tokens; i++) table.push_back(static_cast<int32_t>((i * 5 + 3) % 16));
    std::vector<uint16_t> pool(static_cast<size_t>(16 * 2 * side), 0x7e00); // NaN where nothing is written
    for (int64_t t = 0; t < tokens; t++) {
        uint16_t* block = pool.data() + table[static_cast<size_t>(t / 16)] * 2 * side;
        k.write_kv(keys.data() + t * a.head_dim, values.data() + t * a.head_dim, block, block + side, static_cast<int>(t % 16),
                   a.head_dim);
    }
    const std::unique_ptr<float, decltype(&std::free)> scratch(
        static_cast<float*>(std::aligned_alloc(64, kAttentionScratch * sizeof(float))), &std::free);
    Floats out(q.size());
    AttentionArgs args{};
    args.q = q.data(), args.out = out.data();
    args.ldq = args.ldo = a.heads * a.head_dim;
    args.num_queries = a.queries, args.num_heads = a.heads, args.head_dim = a.head_dim;
    args.first_position = a.position, args.window = a.window, args.context = tokens;
    args.scale = 0.2f, args.softcap = a.softcap, args.causal = true;
    args.block_table = table.data(), args.pool = pool.data(), args.block_stride = 2 * side, args.v_offset = side;
    args.scratch = scratch.get();
    k.attention(args);
    for (uint16_t h : pool) out.push_back(static_cast<float>(h));
    return out;
}

bool same(const char* name, const Floats& a, const Floats& b) {
    if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return true;
    std::printf("%s differs\n", name);
    return false;
}

} // namespace

int main() {
    const OpKernels &emulated = ops_avx512(), &generic = ops_generic();
    const Rows r;
    bool equal = same("rows", rows(emulated, r), rows(generic, r));
    equal = same("scans", scans(emulated, r), scans(generic, r)) && equal;
    for (const Attention& a : {Attention{64, 3, 8, 100, 0, 0.0f},
                               {64, 1, 1, 200, 0, 0.0f},
                               {16, 32, 1, 70, 0, 0.0f},
                               {128, 6, 4, 130, 50, 5.0f},
                               {32, 2, 13, 0, 9, 0.0f},
                               {256, 4, 5, 61, 0, 0.0f},
                               {48, 5, 1, 15, 0, 0.0f}}) {
        const int64_t tokens = a.position + a.queries;
        const Floats q = random(static_cast<int64_t>(a.queries) * a.heads * a.head_dim, 2), keys = random(tokens * a.head_dim, 2),
                     values = random(tokens * a.head_dim, 1);
        equal = same("attention", attention(emulated, a, q, keys, values), attention(generic, a, q, keys, values)) && equal;
    }
    if (equal) std::puts("equal");
    return equal ? 0 : 1;
}
