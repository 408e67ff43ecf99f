// A pool of threads that share out the chunks of one job at a time. The calling thread takes part.
//
// Chunks are claimed one by one from a single atomic word, so a thread whose core is taken away costs one chunk, not the whole
// job. Between the jobs of a step workers spin (and soon yield); after the step they sleep, so an idle process uses no CPU.
// After fork() the child has none of the workers: it has to make its own pool.
#pragma once
#include "threads/affinity.h"
#include "threads/read_ahead.h"
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace tuili {

class ThreadPool {
  public:
    // num_threads counts the calling thread; at least 1. With `cpus`, one for each thread, threads are bound to them: workers for
    // ever, the calling thread during a step. Throws std::system_error when the system refuses a thread, std::invalid_argument
    // when it refuses a CPU.
    explicit ThreadPool(int num_threads, const std::vector<int>& cpus = {});
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(chunk, thread) for every chunk in [0, num_chunks), 0 <= thread < num_threads, and returns when all are done.
    // Only one thread at a time may call it; body must not throw.
    template <class F>
    void run(int64_t num_chunks, F&& body) {
        using Body = std::remove_reference_t<F>;
        if (num_chunks <= 0) return;
        if (num_chunks == 1 || workers_.empty()) {
            for (int64_t i = 0; i < num_chunks; i++) body(i, 0);
            return;
        }
        run_job(
            num_chunks, [](void* context, int64_t chunk, int thread) { (*static_cast<Body*>(context))(chunk, thread); },
            const_cast<std::remove_const_t<Body>*>(&body));
    }

    // What threads fetch while they wait for others.
    ReadAhead& read_ahead() { return read_ahead_; }

    // While a step is active, workers expect the next job within microseconds and do not sleep.
    class Active {
      public:
        explicit Active(ThreadPool& pool) : pool_(pool), pinned_(pool.first_cpu_) { pool_.set_active(true); }
        ~Active() { pool_.set_active(false); }
        Active(const Active&) = delete;
        Active& operator=(const Active&) = delete;

      private:
        ThreadPool& pool_;
        PinnedHere pinned_;
    };

  private:
    using Body = void (*)(void* context, int64_t chunk, int thread);

    void run_job(int64_t num_chunks, Body body, void* context);
    void run_batch(int64_t first, int64_t count, Body body, void* context);
    int64_t work(uint64_t ticket, int thread);
    void worker(int thread);
    uint64_t await_job(uint64_t seen, ReadAhead::Cursor& cursor);
    void set_active(bool active);
    void wake_sleepers();
    void stop();

    // generation (32 bits) | number of chunks (16) | next chunk (16). One word, so that a late worker can never take a chunk of
    // a job whose body it has not read.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    alignas(64) std::atomic<Body> body_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<int64_t> first_{0};
    std::atomic<bool> active_{false}, stop_{false};
    alignas(64) std::atomic<uint32_t> wake_{0};
    std::atomic<int32_t> sleepers_{0};
    ReadAhead read_ahead_;
    std::vector<std::thread> workers_;
    int first_cpu_ = PinnedHere::kAnyCpu;
};

// Threads worth starting here: CPUs of the affinity mask, at most the cgroup's quota (v1 and v2) rounded up, at least 1.
int usable_cpus();

} // namespace tuili
