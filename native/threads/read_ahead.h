// Memory that a step reads soon, brought nearer by threads that have nothing else to do.
//
// A step of few rows takes as long as reading the weights does, and the order in which they are read is known. While a thread
// waits for others, for a row that one thread computes alone, or for the next step, the memory bus would idle: instead the thread
// fetches what comes next into the caches. No result depends on it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tuili {

class ReadAhead {
  public:
    // What one phase reads: a matrix from its front, or two in turn. Nothing, with `bytes` 0.
    struct Stretch {
        const uint8_t *first, *second; // second: may be null
        size_t bytes;                  // of each
    };

    // The stretches of a step, in the order in which it reads them. Before the first step.
    void set(const std::vector<Stretch>& stretches);

    // Soon stretch `next` is read: `bytes` from its front on, and of those behind it, may be fetched. Within a step `next` grows.
    void expect(size_t next, size_t bytes);
    // The same, from the first one on, for the next step.
    void restart(size_t bytes);

    // The part that one thread has taken on.
    class Cursor {
      public:
        static constexpr int kLines = 8; // cache lines in a row: no longer does a thread look away from what it waits for
        // The next lines; null when there is nothing to fetch.
        const uint8_t* take(ReadAhead& ahead) {
            if (left_ == 0 && !ahead.take_slice(*this)) return nullptr;
            left_--;
            const uint8_t* const lines = at_;
            at_ += kLines * 64;
            return lines;
        }
        // Requests the next lines; false when there is nothing to fetch.
        bool fetch(ReadAhead& ahead) {
            const uint8_t* const lines = take(ahead);
            for (int i = 0; lines && i < kLines; i++) __builtin_prefetch(lines + i * 64);
            return lines != nullptr;
        }

      private:
        friend ReadAhead;
        const uint8_t* at_ = nullptr;
        int left_ = 0;
    };

    // What a cursor gets at once: the end of a stretch that is shorter is left to its reader.
    static constexpr int64_t kSlice = 4 * Cursor::kLines * 64;

  private:
    bool take_slice(Cursor& cursor) {
        if (next_.load(std::memory_order_relaxed) >= end_.load(std::memory_order_acquire)) return false;
        return locate(next_.fetch_add(1, std::memory_order_relaxed), cursor);
    }
    bool locate(int64_t slice, Cursor& cursor) const;
    void allow(int64_t first, size_t bytes);

    std::vector<Stretch> stretches_;
    std::vector<int64_t> starts_{0};                    // the first slice of each stretch, and the number of all slices
    alignas(64) std::atomic<int64_t> next_{0}, end_{0}; // slices that may be taken: by whoever waits, in order
};

} // namespace tuili
