#include "bench/probe.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <sys/mman.h>

namespace tuili {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTries = 3;
constexpr size_t kChunk = size_t{1} << 20; // what one thread reads in one go: as the kernels' runs of tiles
constexpr auto kPeakTime = std::chrono::milliseconds(4);
constexpr auto kPingPongTime = std::chrono::milliseconds(4);

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

const ProbeKernels& probe_of(Isa isa) {
    if (isa > best_isa()) throw std::invalid_argument("this CPU does not have that instruction set level");
#if defined(__x86_64__) || defined(_M_X64)
    if (isa == Isa::avx512) return probe_avx512();
    if (isa == Isa::avx2) return probe_avx2();
#endif
    return probe_generic();
}

} // namespace

Probe::Probe(Isa isa, int num_threads, size_t buffer_bytes)
    : kernels_(probe_of(isa)), best_(probe_of(best_isa())), pool_(num_threads),
      huge_((buffer_bytes + kChunk - 1) / kChunk * kChunk) {
    fill(huge_);
}

// Memory that was never written is one page of zeros, which a cache holds.
void Probe::fill(Buffer& buffer) {
    pool_.run(static_cast<int64_t>(buffer.size() / kChunk),
              [&](int64_t i, int) { std::memset(buffer.data() + static_cast<size_t>(i) * kChunk, 0x5a, kChunk); });
}

double Probe::read_bandwidth() { return read(huge_); }

double Probe::small_page_read_bandwidth() {
    if (small_.size() == 0) {
        small_ = Buffer(huge_.size());
#ifdef MADV_NOHUGEPAGE
        madvise(small_.data(), small_.size(), MADV_NOHUGEPAGE);
#endif
        fill(small_);
    }
    return read(small_);
}

double Probe::read(const Buffer& buffer) {
    const ThreadPool::Active active(pool_);
    double best = 0;
    for (int t = 0; t < kTries; t++) {
        std::atomic<uint64_t> sink{0};
        const auto start = Clock::now();
        pool_.run(static_cast<int64_t>(buffer.size() / kChunk), [&](int64_t i, int) {
            sink.fetch_xor(best_.read(buffer.data() + static_cast<size_t>(i) * kChunk, kChunk), std::memory_order_relaxed);
        });
        best = std::max(best, static_cast<double>(buffer.size()) / seconds_since(start));
    }
    return best;
}

// Every thread works until the same moment, so that all of them are at it together.
double Probe::peak(int64_t (*operations)(int64_t rounds, float* sink)) {
    constexpr int64_t kRounds = 1000; // microseconds
    const ThreadPool::Active active(pool_);
    double best = 0;
    for (int t = 0; t < kTries; t++) {
        std::atomic<int64_t> total{0};
        const auto start = Clock::now();
        pool_.run(pool_.num_threads(), [&](int64_t, int) {
            int64_t mine = 0;
            float sink = 0;
            do mine += operations(kRounds, &sink);
            while (Clock::now() - start < kPeakTime);
            total.fetch_add(mine, std::memory_order_relaxed);
        });
        best = std::max(best, static_cast<double>(total.load()) / seconds_since(start));
    }
    return best;
}

// Two threads pass a number back and forth: even numbers are the first one's, odd ones the second's, -1 ends the game.
double Probe::core_latency() {
    if (pool_.num_threads() < 2) throw std::invalid_argument("the latency between cores needs two threads");
    const ThreadPool::Active active(pool_);
    alignas(64) std::atomic<int64_t> ball{-2}; // until both are there
    double latency = 0;
    const auto first = [&] {
        for (int spins = 0; ball.load(std::memory_order_acquire) == -2; spins++)
            if (spins > 1000) std::this_thread::yield();
        const auto start = Clock::now();
        int64_t turns = 0;
        for (bool over = false; !over; turns += 2) {
            over = turns % 256 == 0 && Clock::now() - start > kPingPongTime;
            ball.store(over ? -1 : turns + 1, std::memory_order_release);
            for (int spins = 0; !over && ball.load(std::memory_order_acquire) != turns + 2; spins++)
                if (spins > 100'000) std::this_thread::yield(); // both may be on one core
        }
        latency = seconds_since(start) / static_cast<double>(turns);
    };
    const auto second = [&] {
        ball.store(0, std::memory_order_release);
        for (int spins = 0;; spins++) {
            const int64_t turn = ball.load(std::memory_order_acquire);
            if (turn == -1) return;
            if (turn % 2 != 0) {
                ball.store(turn + 1, std::memory_order_release);
                spins = 0;
            } else if (spins > 100'000) {
                std::this_thread::yield();
            }
        }
    };
    pool_.run(2, [&](int64_t chunk, int) { chunk == 0 ? first() : second(); });
    return latency;
}

} // namespace tuili
