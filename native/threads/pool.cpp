#include "threads/pool.h"
#include <algorithm>
#include <stdexcept>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace tuili {

namespace {

constexpr uint64_t kMaxChunks = 0xffff;
constexpr int kSpinsBeforeYield = 2000;  // some ten microseconds
constexpr int kYieldsBeforeSleep = 2000; // outside a step: about a millisecond, longer than between two steps

void pause_cpu() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

uint64_t generation(uint64_t ticket) { return ticket >> 32; }
uint64_t chunks(uint64_t ticket) { return ticket >> 16 & 0xffff; }
uint64_t next(uint64_t ticket) { return ticket & 0xffff; }

} // namespace

ThreadPool::ThreadPool(int num_threads, const std::vector<int>& cpus) {
    if (!cpus.empty() && cpus.size() != static_cast<size_t>(num_threads))
        throw std::invalid_argument("not as many CPUs as threads");
    workers_.reserve(static_cast<size_t>(std::max(num_threads - 1, 0)));
    try {
        for (int thread = 1; thread < num_threads; thread++) {
            workers_.emplace_back([this, thread] { worker(thread); });
            if (!cpus.empty()) pin_thread(workers_.back(), cpus[static_cast<size_t>(thread)]);
        }
    } catch (...) { // a limit on threads or memory: those that run have to end before their objects do
        stop();
        throw;
    }
    if (!cpus.empty()) first_cpu_ = cpus[0];
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stop_.store(true);
    wake_sleepers();
    for (std::thread& t : workers_) t.join();
}

void ThreadPool::wake_sleepers() {
    wake_.fetch_add(1);
    wake_.notify_all();
}

void ThreadPool::set_active(bool active) {
    active_.store(active);
    if (active && sleepers_.load() > 0) wake_sleepers();
}

void ThreadPool::run_job(int64_t num_chunks, Body body, void* context) {
    for (int64_t first = 0; first < num_chunks; first += kMaxChunks)
        run_batch(first, std::min<int64_t>(num_chunks - first, kMaxChunks), body, context);
}

void ThreadPool::run_batch(int64_t first, int64_t count, Body body, void* context) {
    // Every chunk of the previous job is done, so nobody reads these fields for a chunk of it.
    body_.store(body, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    first_.store(first, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint64_t old = ticket_.load(std::memory_order_relaxed);
    const uint64_t ticket = (generation(old) + 1) << 32 | static_cast<uint64_t>(count) << 16;
    ticket_.store(ticket); // sequentially consistent, as the sleeper's count: one of the two sides sees the other
    if (sleepers_.load() > 0) wake_sleepers();

    const int64_t mine = work(ticket, 0);
    if (mine > 0) done_.fetch_add(mine, std::memory_order_acq_rel);
    ReadAhead::Cursor cursor;
    for (int spins = 0; done_.load(std::memory_order_acquire) != count; spins++) {
        if (cursor.fetch(read_ahead_))
            spins = 0;
        else if (spins < kSpinsBeforeYield)
            pause_cpu();
        else
            std::this_thread::yield();
    }
}

// Claims and runs chunks of the job that `ticket` belongs to until none is left; returns how many.
int64_t ThreadPool::work(uint64_t ticket, int thread) {
    const uint64_t job = generation(ticket);
    const Body body = body_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const int64_t first = first_.load(std::memory_order_relaxed);
    int64_t count = 0;
    while (generation(ticket) == job && next(ticket) < chunks(ticket)) {
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        body(context, first + static_cast<int64_t>(next(ticket)), thread);
        count++;
        ticket = ticket_.load(std::memory_order_acquire);
    }
    return count;
}

void ThreadPool::worker(int thread) {
    uint64_t seen = 0;
    ReadAhead::Cursor cursor;
    while (!stop_.load(std::memory_order_relaxed)) {
        const uint64_t ticket = await_job(seen, cursor);
        if (generation(ticket) == seen) continue; // stopping
        seen = generation(ticket);
        const int64_t mine = work(ticket, thread);
        if (mine > 0) done_.fetch_add(mine, std::memory_order_acq_rel);
    }
}

// Returns the ticket of a job other than `seen`, or any ticket when the pool stops.
uint64_t ThreadPool::await_job(uint64_t seen, ReadAhead::Cursor& cursor) {
    int yields = 0;
    for (int spins = 0;; spins++) {
        const uint64_t ticket = ticket_.load(std::memory_order_acquire);
        if (generation(ticket) != seen || stop_.load(std::memory_order_relaxed)) return ticket;
        if (cursor.fetch(read_ahead_)) {
            spins = 0;
        } else if (spins < kSpinsBeforeYield) {
            pause_cpu();
        } else if (active_.load(std::memory_order_relaxed) || yields < kYieldsBeforeSleep) {
            std::this_thread::yield();
            yields++;
        } else {
            const uint32_t wake = wake_.load();
            sleepers_.fetch_add(1);
            if (generation(ticket_.load()) == seen && !stop_.load() && !active_.load()) wake_.wait(wake);
            sleepers_.fetch_sub(1);
            spins = yields = 0;
        }
    }
}

} // namespace tuili
