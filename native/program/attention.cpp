#include "program/frame.h"
#include <algorithm>

namespace tuili {

namespace {

// Rows of a tile that keep queries, sums and scores in the first-level cache.
constexpr int64_t kTargetRows = 24;
// Multiplications below this many are not worth waking another thread for.
constexpr int64_t kSerialProducts = 128 * 1024;

struct Tile {
    int32_t sequence, kv_head, first_head, num_heads; // heads counted within the KV head
    int32_t first_query, num_queries;                 // counted within the sequence's tokens of this step
};

// Later queries first: with causal masking they have most to do, and the end of a job should be short.
std::vector<Tile> tiles(const op::Attention& o, const Step& step) {
    const int64_t group = o.num_heads / o.num_kv_heads, heads = std::min<int64_t>(group, kAttentionRows);
    const int64_t queries = std::max<int64_t>(1, kTargetRows / heads);
    std::vector<Tile> result;
    for (int64_t s = 0; s < step.num_sequences; s++) {
        const int64_t n = step.query_start[s + 1] - step.query_start[s];
        for (int64_t q = (n - 1) / queries * queries; q >= 0; q -= queries)
            for (int64_t kv = 0; kv < o.num_kv_heads; kv++)
                for (int64_t h = 0; h < group; h += heads)
                    result.push_back({static_cast<int32_t>(s), static_cast<int32_t>(kv), static_cast<int32_t>(h),
                                      static_cast<int32_t>(std::min(heads, group - h)), static_cast<int32_t>(q),
                                      static_cast<int32_t>(std::min(queries, n - q))});
    }
    return result;
}

AttentionArgs arguments(const op::Attention& o, const Frame& f, const Tile& tile) {
    const size_t g = static_cast<size_t>(o.group);
    const StateGroup& group = f.plan.groups[g];
    const Step& step = f.step;
    const int64_t first_token = step.query_start[tile.sequence] + tile.first_query;
    const int64_t queries = step.query_start[tile.sequence + 1] - step.query_start[tile.sequence];
    const int64_t column = (tile.kv_head * (o.num_heads / o.num_kv_heads) + tile.first_head) * o.head_dim;
    AttentionArgs args{};
    args.q = f.row(o.q, first_token) + column;
    args.ldq = f.value(o.q).width;
    args.out = f.row(o.out, first_token) + column;
    args.ldo = f.value(o.out).width;
    args.num_queries = tile.num_queries;
    args.num_heads = tile.num_heads;
    args.head_dim = static_cast<int>(o.head_dim);
    args.context = step.context_lens[tile.sequence];
    args.first_position = args.context - queries + tile.first_query;
    args.window = o.window;
    args.scale = o.scale;
    args.softcap = o.softcap;
    args.causal = o.causal;
    args.block_table = step.block_tables[g].data + tile.sequence * step.block_tables[g].stride;
    args.pool = f.work.kv_pools[g].as<uint16_t>() + o.layer * 2 * group.side_elements() + tile.kv_head * o.head_dim * kBlockSize;
    args.block_stride = group.block_elements();
    args.v_offset = group.side_elements();
    return args;
}

int64_t products(const op::Attention& o, const Step& step) {
    int64_t positions = 0;
    for (int64_t s = 0; s < step.num_sequences; s++)
        positions += static_cast<int64_t>(step.context_lens[s]) * (step.query_start[s + 1] - step.query_start[s]);
    return positions * o.num_heads * o.head_dim * 2;
}

} // namespace

void run(const op::Attention& o, const Frame& f) {
    const std::vector<Tile> all = tiles(o, f.step);
    const auto body = [&](int64_t i, int thread) {
        AttentionArgs args = arguments(o, f, all[static_cast<size_t>(i)]);
        args.scratch = f.work.thread_scratch[static_cast<size_t>(thread)].as<float>();
        f.kernels.ops.attention(args);
    };
    const int64_t n = static_cast<int64_t>(all.size());
    if (products(o, f.step) >= kSerialProducts) return f.pool.run(n, body);
    for (int64_t i = 0; i < n; i++) body(i, 0);
}

} // namespace tuili
