#include "program/frame.h"
#include <algorithm>
#include <atomic>

namespace tuili {

namespace {

// Rows of a tile that keep queries, sums and scores in the first-level cache.
constexpr int64_t kTargetRows = 24;
// Multiplications below this many are not worth waking another thread for.
constexpr int64_t kSerialProducts = 32 * 1024;
// With fewer tiles than this for each thread, their segments are shared out.
constexpr int64_t kTilesAThread = 8;

struct Tile {
    int32_t sequence, kv_head, first_head, num_heads; // heads counted within the KV head
    int32_t first_query, num_queries;                 // counted within the sequence's tokens of this step
};

// What one thread takes: a tile, or one segment of a tile that threads share.
struct Piece {
    int32_t tile, segment; // kWhole: all of them
};
constexpr int32_t kWhole = -1;

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

// Positions that a tile's queries see.
NextPositions positions(const AttentionArgs& a) {
    const int64_t first = a.window > 0 ? std::max<int64_t>(a.first_position - a.window + 1, 0) : 0;
    return {a.pool, a.block_table, first, a.causal ? a.first_position + a.num_queries : a.context};
}

int64_t products(const op::Attention& o, const Step& step) {
    int64_t positions = 0;
    for (int64_t s = 0; s < step.num_sequences; s++)
        positions += static_cast<int64_t>(step.context_lens[s]) * (step.query_start[s + 1] - step.query_start[s]);
    return positions * o.num_heads * o.head_dim * 2;
}

int32_t first_segment(const AttentionArgs& a) { return static_cast<int32_t>(segment_of(positions(a).first)); }
int32_t last_segment(const AttentionArgs& a) { return static_cast<int32_t>(segment_of(positions(a).last - 1)); }

// Few tiles leave threads idle, as when one sequence with few KV heads is decoded: then the segments of a tile are shared out,
// and whoever computes the last one merges them. The bits are the same.
class SharedTiles {
  public:
    SharedTiles(const op::Attention& o, const Frame& f, const std::vector<Tile>& tiles) : o_(o), f_(f), tiles_(tiles) {
        int64_t floats = 0;
        for (const Tile& tile : tiles) {
            const AttentionArgs a = arguments(o, f, tile);
            const int32_t first = first_segment(a), last = last_segment(a);
            partials_.push_back(floats);
            left_.push_back(last - first + 1);
            floats += (last - first + 1) * a.num_queries * a.num_heads * (a.head_dim + kPartialExtra);
            const auto index = static_cast<int32_t>(partials_.size()) - 1;
            for (int32_t s = first; s <= last; s++) pieces_.push_back({index, first == last ? kWhole : s});
        }
        std::vector<float>& memory = f.work.attention_partials;
        if (memory.size() < static_cast<size_t>(floats)) memory.resize(static_cast<size_t>(floats));
    }

    int64_t num_pieces() const { return static_cast<int64_t>(pieces_.size()); }

    void run(int64_t i, float* scratch) {
        const Piece& piece = pieces_[static_cast<size_t>(i)];
        const auto tile = static_cast<size_t>(piece.tile);
        AttentionArgs args = arguments(o_, f_, tiles_[tile]);
        args.scratch = scratch;
        args.next = after(i);
        args.unexpected = i < f_.pool.num_threads();
        if (piece.segment == kWhole) return f_.kernels.ops.attention(args);
        args.partials = f_.work.attention_partials.data() + partials_[tile];
        f_.kernels.ops.attention_segment(args, piece.segment);
        if (std::atomic_ref(left_[tile]).fetch_sub(1, std::memory_order_acq_rel) == 1) f_.kernels.ops.attention_merge(args);
    }

  private:
    // What a thread that took piece i most likely takes next.
    NextPositions after(int64_t i) const {
        const int64_t next = i + f_.pool.num_threads();
        if (next >= num_pieces()) return {};
        const Piece& piece = pieces_[static_cast<size_t>(next)];
        NextPositions result = positions(arguments(o_, f_, tiles_[static_cast<size_t>(piece.tile)]));
        if (piece.segment != kWhole) {
            result.first = std::max(result.first, segment_start(piece.segment));
            result.last = std::min(result.last, segment_start(piece.segment + 1));
        }
        return result;
    }

    const op::Attention& o_;
    const Frame& f_;
    const std::vector<Tile>& tiles_;
    std::vector<Piece> pieces_;
    std::vector<int64_t> partials_; // where each tile's begin
    std::vector<int32_t> left_;     // segments of each tile that are not done
};

} // namespace

void run(const op::Attention& o, const Frame& f) {
    const std::vector<Tile> all = tiles(o, f.step);
    const int64_t n = static_cast<int64_t>(all.size());
    const int64_t threads = products(o, f.step) < kSerialProducts ? 1 : f.pool.num_threads();
    const auto scratch = [&](int thread) { return f.work.thread_scratch[static_cast<size_t>(thread)].as<float>(); };
    const auto whole = [&](int64_t i, int thread) {
        AttentionArgs args = arguments(o, f, all[static_cast<size_t>(i)]);
        args.scratch = scratch(thread);
        if (i + threads < n) args.next = positions(arguments(o, f, all[static_cast<size_t>(i + threads)]));
        args.unexpected = i < threads;
        f.kernels.ops.attention(args);
    };
    if (threads == 1) {
        for (int64_t i = 0; i < n; i++) whole(i, 0);
    } else if (n >= kTilesAThread * threads) {
        f.pool.run(n, whole);
    } else {
        SharedTiles shared(o, f, all);
        f.pool.run(shared.num_pieces(), [&](int64_t i, int thread) { shared.run(i, scratch(thread)); });
    }
}

} // namespace tuili
