// Paged attention with f16 keys and values, grouped-query heads, over Vec16. Include after one level's vec.h.
//
// One routine serves decode (one query) and prefill (many). A row is (query, query head); for each row the sequence is fixed:
// segments at absolute positions (kernels/ops.h), each computed by itself, then merged in order; in a segment, chunks of 64
// tokens, scores summed in head_dim order, the running softmax updated once a chunk, values added in token order. So a row has
// the same bits in any batch, and whether its segments were computed by one thread or by several. In K blocks the 16 tokens are
// the lanes, so that a score needs no sum across lanes; in V blocks the dimensions are.
//
// Places of a block that hold no token of the sequence are never added: scores there are replaced, values there are not read.
#pragma once
#include "kernels/activation.h"
#include "kernels/inline.h"
#include "kernels/ops.h"
#include <utility>

namespace tuili::TUILI_ISA {

inline constexpr int kChunkBlocks = kAttentionChunk / kBlockSize;
inline constexpr float kFarBelow = -1e30f; // below every score; finite, so that differences are numbers

// Blocks (or runs of 16 dimensions) that one pass works on: more of them when there are few rows, to have enough independent
// sums.
template <int rows>
inline constexpr int kWide = rows == 1                  ? 4
                             : rows <= kTileRowsMax / 2 ? 2
                                                        : 1;

// Queries of a tile lie in runs of 16 dimensions, [head_dim / 16][rows of the tile][16]: an element of any row is then at a
// constant distance from that of the first.
inline constexpr int kRun = 16;

// What score_rows reads: K of the chunk's blocks, and blocks of the next chunk to bring nearer meanwhile.
struct KeyBlocks {
    const uint16_t* now[kChunkBlocks];
    const uint16_t* next[kChunkBlocks];
    int64_t v_offset; // from K to V of a block
    bool ahead;       // whether there is a next chunk, to be fetched by this pass
};

// scores[m][block * 16 + token] for `wide` blocks from `b`; q_run: floats between runs of the queries.
template <int rows, int wide>
inline void score_blocks(const float* q, int64_t q_run, const KeyBlocks& k, int b, int head_dim, float* scores) {
    Vec16 sum[rows][wide];
    for (int m = 0; m < rows; m++)
        for (int w = 0; w < wide; w++) sum[m][w] = zero();
    for (int d = 0; d < head_dim; d += kRun, q += q_run) {
        for (int w = 0; k.ahead && w < wide; w++) { // a run of a block is eight cache lines of K, and as many of V
            const uint16_t* const next = k.next[b + w] + d * kBlockSize;
            for (int i = 0; i < kRun * kBlockSize; i += 32) {
                prefetch(next + i);
                prefetch(next + k.v_offset + i);
            }
        }
        TUILI_UNROLL for (int i = 0; i < kRun; i++) for (int w = 0; w < wide; w++) {
            const Vec16 key = load_f16(k.now[b + w] + (d + i) * kBlockSize);
            for (int m = 0; m < rows; m++) sum[m][w] = fma(set1(q[m * kRun + i]), key, sum[m][w]);
        }
    }
    for (int m = 0; m < rows; m++)
        for (int w = 0; w < wide; w++) store(scores + m * kAttentionChunk + (b + w) * kBlockSize, sum[m][w]);
}

template <int rows>
void score_rows(const float* q, int64_t q_run, const KeyBlocks& k, int first_block, int last_block, int head_dim, float* scores) {
    int b = first_block;
    for (; b + kWide<rows> <= last_block; b += kWide<rows>) score_blocks<rows, kWide<rows>>(q, q_run, k, b, head_dim, scores);
    for (; b < last_block; b++) score_blocks<rows, 1>(q, q_run, k, b, head_dim, scores);
}

// out[m][d] = out[m][d] * decay[m] + sum over tokens of p[m][token] * v[token][d], for `wide` runs of 16 dimensions from d.
template <int rows, int wide>
inline void add_values_at(int d, const float* p, const uint16_t* const* v, int first_token, int last_token, int head_dim,
                          float* out, const float* decay) {
    Vec16 sum[rows][wide];
    for (int m = 0; m < rows; m++)
        for (int w = 0; w < wide; w++) sum[m][w] = set1(decay[m]) * load(out + m * head_dim + d + w * 16);
    for (int t = first_token; t < last_token;) {
        const uint16_t* value = v[t / kBlockSize] + (t % kBlockSize) * head_dim + d;
        const int end = (t / kBlockSize + 1) * kBlockSize, stop = end < last_token ? end : last_token;
#pragma GCC unroll 4
        for (; t < stop; t++, value += head_dim)
            for (int w = 0; w < wide; w++) {
                const Vec16 x = load_f16(value + w * 16);
                for (int m = 0; m < rows; m++) sum[m][w] = fma(set1(p[m * kAttentionChunk + t]), x, sum[m][w]);
            }
    }
    for (int m = 0; m < rows; m++)
        for (int w = 0; w < wide; w++) store(out + m * head_dim + d + w * 16, sum[m][w]);
}

template <int rows>
void add_values(const float* p, const uint16_t* const* v, int first_token, int last_token, int head_dim, float* out,
                const float* decay) {
    int d = 0;
    for (; d + 16 * kWide<rows> <= head_dim; d += 16 * kWide<rows>)
        add_values_at<rows, kWide<rows>>(d, p, v, first_token, last_token, head_dim, out, decay);
    for (; d < head_dim; d += 16) add_values_at<rows, 1>(d, p, v, first_token, last_token, head_dim, out, decay);
}

// The routines for 1 .. kTileRowsMax rows.
using ScoreRows = void (*)(const float*, int64_t, const KeyBlocks&, int, int, int, float*);
using AddValues = void (*)(const float*, const uint16_t* const*, int, int, int, float*, const float*);
template <int... n>
inline ScoreRows score_rows_for(int rows, std::integer_sequence<int, n...>) {
    static constexpr ScoreRows table[] = {&score_rows<n + 1>...};
    return table[rows - 1];
}
template <int... n>
inline AddValues add_values_for(int rows, std::integer_sequence<int, n...>) {
    static constexpr AddValues table[] = {&add_values<n + 1>...};
    return table[rows - 1];
}
using TileRows = std::make_integer_sequence<int, kTileRowsMax>;

// Puts softcapped scores of one row in units of log 2, those outside [first, last) far below all others; returns the largest.
inline float mask_scores(float* scores, int first, int last, float softcap) {
    constexpr float kLog2e = 1.44269504088896341f;
    const bool all = first == 0 && last == kAttentionChunk;
    Vec16 top = set1(kFarBelow);
    for (int b = 0; b < kChunkBlocks; b++) {
        Vec16 x = load(scores + b * 16);
        if (softcap > 0) x = set1(softcap * kLog2e) * tanh(x / set1(softcap));
        if (!all) x = select(lanes(first - b * 16, last - b * 16), x, set1(kFarBelow));
        if (!all || softcap > 0) store(scores + b * 16, x);
        top = vmax(top, x);
    }
    return reduce_max(top);
}

// Scores to weights relative to `maximum`, exactly 0 outside [first, last); returns their sums, one a lane.
inline Vec16 weigh_scores(float* scores, int first, int last, float maximum) {
    const bool all = first == 0 && last == kAttentionChunk;
    Vec16 sum = zero();
    for (int b = 0; b < kChunkBlocks; b++) {
        Vec16 p = exp2_negative(load(scores + b * 16) - set1(maximum));
        if (!all) p = select(lanes(first - b * 16, last - b * 16), p, zero());
        store(scores + b * 16, p);
        sum = sum + p;
    }
    return sum;
}

// What attention over some positions has come to, for one row: values weighted relative to 2^maximum, and the sum of weights.
struct AttentionSum {
    float* values; // [head_dim]
    float maximum, weights;
};

// total = total + part, each brought to the larger maximum.
inline void merge_sums(AttentionSum& total, const AttentionSum& part, int head_dim) {
    const float maximum = total.maximum > part.maximum ? total.maximum : part.maximum;
    float factors[16] = {total.maximum, part.maximum};
    store(factors, exp2_negative(load(factors) - set1(maximum)));
    const Vec16 a = set1(factors[0]), b = set1(factors[1]);
    for (int d = 0; d < head_dim; d += 16) store(total.values + d, fma(load(part.values + d), b, a * load(total.values + d)));
    total.maximum = maximum;
    total.weights = total.weights * factors[0] + part.weights * factors[1];
}

// One tile of rows, with its place in the scratch memory.
class AttentionTile {
  public:
    explicit AttentionTile(const AttentionArgs& args)
        : a_(args), rows_(args.num_queries * args.num_heads), q_(args.scratch), total_(q_ + rows_ * args.head_dim),
          out_(total_ + rows_ * args.head_dim), scores_(out_ + rows_ * args.head_dim) {}

    // All segments that a query sees.
    void run() {
        load_queries();
        start_totals();
        fetch_first(first_visible(0), last_position());
        for (int64_t s = segment_of(first_visible(0)); s <= segment_of(last_position() - 1); s++) {
            segment(s, last_position());
            for (int row = 0; row < rows_; row++) merge_sums(totals_[row], segment_sum(row), a_.head_dim);
        }
        store_output();
    }

    // One segment, its sums kept for merge().
    void run_segment(int64_t s) {
        const int64_t end = segment_end(s);
        fetch_first(segment_first(s), end);
        load_queries();
        segment(s, end);
        for (int row = 0; row < rows_; row++) {
            float* const place = partial(s, row);
            const AttentionSum sum = segment_sum(row);
            for (int d = 0; d < a_.head_dim; d += 16) store(place + d, load(sum.values + d));
            place[a_.head_dim] = sum.maximum;
            place[a_.head_dim + 1] = sum.weights;
        }
    }

    void merge() {
        start_totals();
        for (int64_t s = segment_of(first_visible(0)); s <= segment_of(last_position() - 1); s++)
            for (int row = 0; row < rows_; row++) {
                float* const place = partial(s, row);
                merge_sums(totals_[row], {place, place[a_.head_dim], place[a_.head_dim + 1]}, a_.head_dim);
            }
        store_output();
    }

  private:
    int64_t first_visible(int query) const {
        const int64_t first = a_.window > 0 ? a_.first_position + query - a_.window + 1 : 0;
        return first > 0 ? first : 0;
    }

    int64_t last_position() const { return a_.causal ? a_.first_position + a_.num_queries : a_.context; }

    float* partial(int64_t s, int row) const {
        return a_.partials + ((s - segment_of(first_visible(0))) * rows_ + row) * (a_.head_dim + kPartialExtra);
    }

    int64_t segment_end(int64_t s) const {
        return segment_start(s + 1) < last_position() ? segment_start(s + 1) : last_position();
    }
    int64_t segment_first(int64_t s) const { return segment_start(s) > first_visible(0) ? segment_start(s) : first_visible(0); }

    // Requests the first chunk of positions [first, end), where nobody did so before.
    void fetch_first(int64_t first, int64_t end) const {
        if (!a_.unexpected) return;
        const int64_t chunk_end = first / kAttentionChunk * kAttentionChunk + kAttentionChunk;
        for (int64_t p = first / kBlockSize * kBlockSize; p < end && p < chunk_end; p += kBlockSize) {
            const uint16_t* const k = key_block(p);
            for (int i = 0; i < kBlockSize * a_.head_dim; i += 32) {
                prefetch(k + i);
                prefetch(k + a_.v_offset + i);
            }
        }
    }

    // Sums over segment s; positions up to read_end are read after it, one by one.
    void segment(int64_t s, int64_t read_end) {
        for (int row = 0; row < rows_; row++) {
            for (int d = 0; d < a_.head_dim; d += 16) store(out_ + row * a_.head_dim + d, zero());
            maximum_[row] = kFarBelow;
            store(weights_[row], zero());
        }
        const int64_t first_position = first_visible(0);
        const int64_t end = segment_end(s);
        int64_t c = segment_start(s) > first_position ? segment_start(s) : first_position / kAttentionChunk * kAttentionChunk;
        for (; c < end; c += kAttentionChunk) {
            const int first_token = static_cast<int>(first_position > c ? first_position - c : 0);
            const int last_token = static_cast<int>(end - c < kAttentionChunk ? end - c : kAttentionChunk);
            chunk(c, first_token, last_token, read_end);
        }
    }

    AttentionSum segment_sum(int row) const { return {out_ + row * a_.head_dim, maximum_[row], reduce_add(load(weights_[row]))}; }

    void load_queries() {
        const Vec16 factor = set1(a_.softcap > 0 ? a_.scale : a_.scale * 1.44269504088896341f); // softened as powers of two
        for (int i = 0; i < a_.num_queries; i++)
            for (int j = 0; j < a_.num_heads; j++) {
                float* const row = q_ + (i * a_.num_heads + j) * kRun;
                const float* q = a_.q + i * a_.ldq + j * a_.head_dim;
                for (int d = 0; d < a_.head_dim; d += kRun) store(row + d * rows_, factor * load(q + d));
            }
    }

    void start_totals() {
        for (int row = 0; row < rows_; row++) {
            totals_[row] = {total_ + row * a_.head_dim, kFarBelow, 0.0f};
            for (int d = 0; d < a_.head_dim; d += 16) store(totals_[row].values + d, zero());
        }
    }

    const uint16_t* key_block(int64_t position) const {
        return a_.pool + a_.block_table[position / kBlockSize] * a_.block_stride;
    }

    // What is read after block b of the chunk at c: the same block of the next chunk, or of what the thread computes next.
    const uint16_t* block_after(int64_t c, int b, int64_t read_end) const {
        const int64_t chunk = c + kAttentionChunk, position = chunk + b * kBlockSize;
        if (position < read_end) return key_block(position);
        if (chunk < read_end || !a_.next.pool) return nullptr;
        const int64_t next = a_.next.first / kAttentionChunk * kAttentionChunk + b * kBlockSize;
        if (next + kBlockSize <= a_.next.first || next >= a_.next.last) return nullptr;
        return a_.next.pool + a_.next.block_table[next / kBlockSize] * a_.block_stride;
    }

    // Tokens [c + first_token, c + last_token). Blocks lie anywhere, so the hardware does not see those of the next chunk coming.
    void chunk(int64_t c, int first_token, int last_token, int64_t read_end) {
        KeyBlocks k;
        const uint16_t* v[kChunkBlocks];
        const int first_block = first_token / kBlockSize, last_block = (last_token + kBlockSize - 1) / kBlockSize;
        k.v_offset = a_.v_offset;
        k.ahead = c + kAttentionChunk < read_end || a_.next.pool;
        for (int b = first_block; b < last_block; b++) {
            k.now[b] = key_block(c + b * kBlockSize);
            const uint16_t* const next = block_after(c, b, read_end);
            k.next[b] = next ? next : k.now[b]; // which costs nothing
            v[b] = k.now[b] + a_.v_offset;
        }
        for (int row = 0, count; row < rows_; row += count) {
            count = tile_rows(row);
            float* scores = scores_ + row * kAttentionChunk;
            score_rows_for(count, TileRows{})(q_ + row * kRun, rows_ * kRun, k, first_block, last_block, a_.head_dim, scores);
            k.ahead = false; // the first rows have seen to it
            float decay[16];
            soften(row, count, c, decay);
            add_values_for(count, TileRows{})(scores, v, first_token, last_token, a_.head_dim, out_ + row * a_.head_dim, decay);
        }
    }

    // The running softmax of rows [row, row + count): their scores become weights, decay what earlier chunks are multiplied by.
    void soften(int row, int count, int64_t c, float* decay) {
        float* scores = scores_ + row * kAttentionChunk;
        int first[kTileRowsMax], last[kTileRowsMax];
        float maximum[16] = {}, previous[16] = {};
        for (int m = 0; m < count; m++) {
            const int query = (row + m) / a_.num_heads;
            first[m] = clamp_token(first_visible(query) - c);
            last[m] = clamp_token((a_.causal ? a_.first_position + query + 1 : a_.context) - c);
            const float largest = mask_scores(scores + m * kAttentionChunk, first[m], last[m], a_.softcap);
            previous[m] = maximum_[row + m];
            maximum[m] = previous[m] > largest ? previous[m] : largest;
        }
        store(decay, exp2_negative(load(previous) - load(maximum)));
        for (int m = 0; m < count; m++) {
            const Vec16 sum = weigh_scores(scores + m * kAttentionChunk, first[m], last[m], maximum[m]);
            maximum_[row + m] = maximum[m];
            store(weights_[row + m], fma(load(weights_[row + m]), set1(decay[m]), sum));
        }
    }

    static int clamp_token(int64_t t) {
        return static_cast<int>(t < 0 ? 0 : t > kAttentionChunk ? static_cast<int64_t>(kAttentionChunk) : t);
    }

    // Rows are split into tiles of nearly equal size.
    int tile_rows(int row) const {
        const int left = rows_ - row, tiles = (left + kTileRowsMax - 1) / kTileRowsMax;
        return (left + tiles - 1) / tiles;
    }

    void store_output() const {
        for (int row = 0; row < rows_; row++) {
            const Vec16 inverse = set1(1.0f / totals_[row].weights);
            float* out = a_.out + row / a_.num_heads * a_.ldo + row % a_.num_heads * a_.head_dim;
            for (int d = 0; d < a_.head_dim; d += 16) store(out + d, inverse * load(totals_[row].values + d));
        }
    }

    const AttentionArgs& a_;
    const int rows_;
    float *q_, *total_, *out_, *scores_;
    AttentionSum totals_[kAttentionRows];
    float maximum_[kAttentionRows];
    alignas(64) float weights_[kAttentionRows][16];
};

inline void attention(const AttentionArgs& args) { AttentionTile(args).run(); }
inline void attention_segment(const AttentionArgs& args, int64_t segment) { AttentionTile(args).run_segment(segment); }
inline void attention_merge(const AttentionArgs& args) { AttentionTile(args).merge(); }

} // namespace tuili::TUILI_ISA
