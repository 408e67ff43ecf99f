#include "program/frame.h"
#include <algorithm>

namespace tuili {

namespace {

// Multiplications below this many are not worth waking another thread for.
constexpr int64_t kSerialProducts = 64 * 1024;

LinearArgs arguments(const Frame& f, ValueId x, int64_t out_width) {
    LinearArgs args{};
    args.x = f.data(x);
    args.ldx = f.value(x).width;
    args.acts = f.work.activations.data();
    args.x_rows = f.rows(x);
    args.num_rows = f.rows(x);
    args.ldo = out_width;
    return args;
}

// Tiles that one claim takes. Many rows: as many as share one reading of the activations, since a chunk is long anyway. Few rows:
// long enough to stream.
int64_t tiles_a_chunk(int64_t total_tiles, int64_t rows, int64_t threads) {
    return std::clamp<int64_t>(total_tiles / (threads * 8), 1, rows >= 32 ? 8 : 256);
}

// A run of tiles of one matrix.
struct TileJob {
    const op::Segment* segment;
    const PackedMatrix* weight;
    int64_t first_row, num_rows; // among the expert's rows
    int64_t tile0, tile1;
};

// Runs body(chunk, thread) for all chunks, on this thread alone when the whole is small.
template <class F>
void share(const Frame& f, int64_t num_chunks, int64_t products, F body) {
    if (products >= kSerialProducts) return f.pool.run(num_chunks, body);
    for (int64_t i = 0; i < num_chunks; i++) body(i, 0);
}

void append_jobs(std::vector<TileJob>& jobs, const op::Segment& segment, const PackedMatrix& weight, int64_t first_row,
                 int64_t num_rows, int64_t chunk) {
    for (int64_t tile = 0; tile < weight.num_tiles(); tile += chunk)
        jobs.push_back({&segment, &weight, first_row, num_rows, tile, std::min(tile + chunk, weight.num_tiles())});
}

} // namespace

void run(const op::Linear& o, const Frame& f) {
    const int64_t rows = f.rows(o.x);
    int64_t tiles = 0;
    for (const op::Segment& s : o.segments) tiles += f.weight(s.weight).matrices[0].num_tiles();
    const int64_t chunk = tiles_a_chunk(tiles, rows, f.pool.num_threads());
    std::vector<TileJob> jobs;
    for (const op::Segment& s : o.segments) append_jobs(jobs, s, f.weight(s.weight).matrices[0], 0, rows, chunk);
    share(f, static_cast<int64_t>(jobs.size()), rows * tiles * kTileRows * f.value(o.x).width, [&](int64_t i, int thread) {
        const TileJob& job = jobs[static_cast<size_t>(i)];
        LinearArgs args = arguments(f, o.x, f.value(job.segment->out).width);
        args.fine = o.fine;
        args.weight = job.weight;
        args.bias = f.vector(job.segment->bias);
        args.tile0 = job.tile0;
        args.tile1 = job.tile1;
        args.out = f.data(job.segment->out);
        args.scratch = f.work.thread_scratch[static_cast<size_t>(thread)].data();
        f.kernels.linear.linear(args);
    });
}

void run(const op::GateUpAct& o, const Frame& f) {
    const PackedMatrix &gate = f.weight(o.gate).matrices[0], &up = f.weight(o.up).matrices[0];
    const int64_t rows = f.rows(o.x), tiles = gate.num_tiles();
    const int64_t chunk = tiles_a_chunk(tiles, rows, f.pool.num_threads());
    share(f, (tiles + chunk - 1) / chunk, 2 * rows * tiles * kTileRows * gate.cols, [&](int64_t i, int thread) {
        LinearArgs args = arguments(f, o.x, f.value(o.out).width);
        args.weight = &gate;
        args.tile0 = i * chunk;
        args.tile1 = std::min((i + 1) * chunk, tiles);
        args.out = f.data(o.out);
        args.scratch = f.work.thread_scratch[static_cast<size_t>(thread)].data();
        f.kernels.linear.gate_up_act(args, up, nullptr, o.act);
    });
}

void run(const op::GroupExperts& o, const Frame& f) {
    ExpertRows& experts = f.work.experts;
    const int32_t* ids = f.expert_ids(o.routing);
    const int64_t n = f.rows(o.routing) * o.top_k;
    experts.start.assign(static_cast<size_t>(o.num_experts) + 1, 0);
    experts.slots.resize(static_cast<size_t>(n));
    experts.tokens.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) experts.start[static_cast<size_t>(ids[i]) + 1]++;
    for (size_t e = 0; e < static_cast<size_t>(o.num_experts); e++) experts.start[e + 1] += experts.start[e];
    std::vector<int32_t> next(experts.start.begin(), experts.start.end() - 1);
    for (int64_t i = 0; i < n; i++) {
        const size_t place = static_cast<size_t>(next[static_cast<size_t>(ids[i])]++);
        experts.slots[place] = static_cast<int32_t>(i);
        experts.tokens[place] = static_cast<int32_t>(i / o.top_k);
    }
}

void run(const op::MoeLinear& o, const Frame& f) {
    const ExpertRows& experts = f.work.experts;
    std::vector<TileJob> jobs;
    int64_t products = 0;
    for (const op::Segment& s : o.segments) {
        const Weight& weight = f.weight(s.weight);
        for (size_t e = 0; e < weight.matrices.size(); e++) {
            const int64_t first = experts.start[e], rows = experts.start[e + 1] - first;
            if (rows == 0) continue;
            const PackedMatrix& matrix = weight.matrices[e];
            append_jobs(jobs, s, matrix, first, rows,
                        std::max<int64_t>(4, tiles_a_chunk(matrix.num_tiles(), rows, f.pool.num_threads())));
            products += rows * matrix.rows * matrix.cols;
        }
    }
    share(f, static_cast<int64_t>(jobs.size()), products, [&](int64_t i, int thread) {
        const TileJob& job = jobs[static_cast<size_t>(i)];
        LinearArgs args = arguments(f, o.x, f.value(job.segment->out).width);
        args.weight = job.weight;
        args.bias = f.vector(job.segment->bias);
        args.row_index = (o.x_per_expert ? experts.slots : experts.tokens).data() + job.first_row;
        args.out_index = experts.slots.data() + job.first_row;
        args.num_rows = job.num_rows;
        args.tile0 = job.tile0;
        args.tile1 = job.tile1;
        args.out = f.data(job.segment->out);
        args.scratch = f.work.thread_scratch[static_cast<size_t>(thread)].data();
        f.kernels.linear.linear(args);
    });
}

} // namespace tuili
