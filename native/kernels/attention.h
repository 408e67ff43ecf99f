// Paged attention with f16 keys and values, grouped-query heads, over Vec16. Include after one level's vec.h.
//
// One routine serves decode (one query) and prefill (many). A row is (query, query head); for each row the sequence is fixed:
// chunks of 64 tokens at absolute positions, scores summed in head_dim order, the running softmax updated once a chunk, values
// added in token order. So a row has the same bits in any batch. In K blocks the 16 tokens are the lanes, so that a score needs
// no sum across lanes; in V blocks the dimensions are.
//
// Places of a block that hold no token of the sequence are never added: scores there are replaced, values there are not read.
#pragma once
#include "kernels/activation.h"
#include "kernels/ops.h"
#include <utility>

namespace tuili::TUILI_ISA {

inline constexpr int kChunkBlocks = kAttentionChunk / kBlockSize;
inline constexpr float kFarBelow = -1e30f; // below every score; finite, so that differences are numbers

// Blocks (or runs of 16 dimensions) that one pass works on: more of them when there are few rows, to have enough independent
// sums.
template <int rows>
inline constexpr int kWide = rows == 1                  ? 4
                             : rows <= kTileRowsMax / 3 ? 2
                                                        : 1;

// scores[m][block * 16 + token] for the given blocks.
template <int rows, int wide>
inline void score_blocks(const float* q, int64_t ldq, const uint16_t* const* k, int head_dim, float* scores) {
    Vec16 sum[rows][wide];
    for (int m = 0; m < rows; m++)
        for (int b = 0; b < wide; b++) sum[m][b] = zero();
    for (int d = 0; d < head_dim; d++) {
        for (int b = 0; b < wide; b++) {
            const Vec16 key = load_f16(k[b] + d * kBlockSize);
            for (int m = 0; m < rows; m++) sum[m][b] = fma(set1(q[m * ldq + d]), key, sum[m][b]);
        }
    }
    for (int m = 0; m < rows; m++)
        for (int b = 0; b < wide; b++) store(scores + m * kAttentionChunk + b * kBlockSize, sum[m][b]);
}

template <int rows>
void score_rows(const float* q, int64_t ldq, const uint16_t* const* k, int first_block, int last_block, int head_dim,
                float* scores) {
    int b = first_block;
    for (; b + kWide<rows> <= last_block; b += kWide<rows>)
        score_blocks<rows, kWide<rows>>(q, ldq, k + b, head_dim, scores + b * kBlockSize);
    for (; b < last_block; b++) score_blocks<rows, 1>(q, ldq, k + b, head_dim, scores + b * kBlockSize);
}

// out[m][d] = out[m][d] * decay[m] + sum over tokens of p[m][token] * v[token][d], for `wide` runs of 16 dimensions from d.
template <int rows, int wide>
inline void add_values_at(int d, const float* p, const uint16_t* const* v, int first_token, int last_token, int head_dim,
                          float* out, const float* decay) {
    Vec16 sum[rows][wide];
    for (int m = 0; m < rows; m++)
        for (int w = 0; w < wide; w++) sum[m][w] = set1(decay[m]) * load(out + m * head_dim + d + w * 16);
    for (int t = first_token; t < last_token; t++) {
        const uint16_t* value = v[t / kBlockSize] + (t % kBlockSize) * head_dim + d;
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
using ScoreRows = void (*)(const float*, int64_t, const uint16_t* const*, int, int, int, float*);
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
    Vec16 top = set1(kFarBelow);
    for (int b = 0; b < kChunkBlocks; b++) {
        Vec16 x = load(scores + b * 16);
        if (softcap > 0) x = set1(softcap * kLog2e) * tanh(x / set1(softcap));
        x = select(lanes(first - b * 16, last - b * 16), x, set1(kFarBelow));
        store(scores + b * 16, x);
        top = vmax(top, x);
    }
    return reduce_max(top);
}

// Scores to weights relative to `maximum`, exactly 0 outside [first, last); returns their sum.
inline float weigh_scores(float* scores, int first, int last, float maximum) {
    Vec16 sum = zero();
    for (int b = 0; b < kChunkBlocks; b++) {
        const Vec16 x = exp2_negative(load(scores + b * 16) - set1(maximum));
        const Vec16 p = select(lanes(first - b * 16, last - b * 16), x, zero());
        store(scores + b * 16, p);
        sum = sum + p;
    }
    return reduce_add(sum);
}

// One tile of rows, with its place in the scratch memory.
class AttentionTile {
  public:
    explicit AttentionTile(const AttentionArgs& args)
        : a_(args), rows_(args.num_queries * args.num_heads), q_(args.scratch), out_(q_ + rows_ * args.head_dim),
          scores_(out_ + rows_ * args.head_dim) {}

    void run() {
        load_queries();
        const int64_t last_position = a_.causal ? a_.first_position + a_.num_queries : a_.context;
        const int64_t first_position = first_visible(0);
        for (int64_t c = first_position / kAttentionChunk * kAttentionChunk; c < last_position; c += kAttentionChunk) {
            const int first_token = static_cast<int>(first_position > c ? first_position - c : 0);
            const int last_token = static_cast<int>(last_position - c < kAttentionChunk ? last_position - c : kAttentionChunk);
            prefetch_chunk(c + kAttentionChunk, last_position);
            chunk(c, first_token, last_token);
        }
        store_output();
    }

  private:
    int64_t first_visible(int query) const {
        const int64_t first = a_.window > 0 ? a_.first_position + query - a_.window + 1 : 0;
        return first > 0 ? first : 0;
    }

    // Blocks lie anywhere, so the hardware does not see the next ones coming.
    void prefetch_chunk(int64_t c, int64_t last_position) const {
        const int64_t bytes = a_.head_dim * kBlockSize * static_cast<int64_t>(sizeof(uint16_t));
        for (int64_t t = c; t < last_position && t < c + kAttentionChunk; t += kBlockSize) {
            const uint16_t* k = a_.pool + a_.block_table[t / kBlockSize] * a_.block_stride;
            for (const uint16_t* side : {k, k + a_.v_offset})
                for (int64_t i = 0; i < bytes; i += 64) prefetch(reinterpret_cast<const uint8_t*>(side) + i);
        }
    }

    void load_queries() {
        const Vec16 factor = set1(a_.softcap > 0 ? a_.scale : a_.scale * 1.44269504088896341f); // softened as powers of two
        for (int i = 0; i < a_.num_queries; i++)
            for (int j = 0; j < a_.num_heads; j++) {
                const int row = i * a_.num_heads + j;
                const float* q = a_.q + i * a_.ldq + j * a_.head_dim;
                for (int d = 0; d < a_.head_dim; d += 16) {
                    store(q_ + row * a_.head_dim + d, factor * load(q + d));
                    store(out_ + row * a_.head_dim + d, zero());
                }
                maximum_[row] = kFarBelow;
                sum_[row] = 0.0f;
            }
    }

    void chunk(int64_t c, int first_token, int last_token) {
        const uint16_t *k[kChunkBlocks], *v[kChunkBlocks];
        const int first_block = first_token / kBlockSize, last_block = (last_token + kBlockSize - 1) / kBlockSize;
        for (int b = first_block; b < last_block; b++) {
            k[b] = a_.pool + a_.block_table[c / kBlockSize + b] * a_.block_stride;
            v[b] = k[b] + a_.v_offset;
        }
        for (int row = 0; row < rows_;) {
            const int count = tile_rows(row);
            float* scores = scores_ + row * kAttentionChunk;
            score_rows_for(count, TileRows{})(q_ + row * a_.head_dim, a_.head_dim, k, first_block, last_block, a_.head_dim,
                                              scores);
            float decay[16];
            soften(row, count, c, decay);
            add_values_for(count, TileRows{})(scores, v, first_token, last_token, a_.head_dim, out_ + row * a_.head_dim, decay);
            row += count;
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
            const float sum = weigh_scores(scores + m * kAttentionChunk, first[m], last[m], maximum[m]);
            maximum_[row + m] = maximum[m];
            sum_[row + m] = sum_[row + m] * decay[m] + sum;
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
            const Vec16 inverse = set1(1.0f / sum_[row]);
            float* out = a_.out + row / a_.num_heads * a_.ldo + row % a_.num_heads * a_.head_dim;
            for (int d = 0; d < a_.head_dim; d += 16) store(out + d, inverse * load(out_ + row * a_.head_dim + d));
        }
    }

    const AttentionArgs& a_;
    const int rows_;
    float *q_, *out_, *scores_;
    float maximum_[kAttentionRows], sum_[kAttentionRows];
};

inline void attention(const AttentionArgs& args) { AttentionTile(args).run(); }

} // namespace tuili::TUILI_ISA
