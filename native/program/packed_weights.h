// The memory of packed matrices: filled from a model file, or mapped from a file of packed weights.
#pragma once
#include "kernels/linear.h"
#include "program/memory.h"
#include "threads/pool.h"
#include <vector>

namespace tuili {

// Matrices lie one behind the other, in the order in which they were placed: the memory of two executors that placed the same
// ones is the same, byte for byte.
class PackedWeights {
  public:
    PackedWeights(const LinearKernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

    size_t packed_bytes(Format format, int64_t rows, int64_t cols) const;

    // Room for `bytes`, to be packed into. Throws std::bad_alloc.
    void reserve(size_t bytes);
    // What write_pack's caller wrote: `bytes` of packed weights from `offset` of the file on, and their digests. Returns the
    // first piece that has another digest, or -1. Where the file's pages are small, the bytes move into huge ones if those are to
    // be had. Throws std::system_error, and std::length_error for a file that ends too early.
    int64_t map(const char* path, size_t offset, size_t bytes, const std::vector<uint64_t>& digests);

    // Where the next matrix goes.
    PackedMatrix place(Format format, int64_t rows, int64_t cols);
    // Packs rows [first, first + count) of a matrix that was placed from rows of the model file, `stride` bytes apart. `first` is
    // a multiple of kTileRows, `count` too unless they are the last. Not after map().
    void pack(const PackedMatrix& matrix, int64_t first, int64_t count, const uint8_t* rows, size_t stride);

    // A digest of every kPiece bytes.
    std::vector<uint64_t> digests() const;
    static constexpr size_t kPiece = size_t{2} << 20;
    // Bytes that a file needs behind the last matrix: kernels may read (never use) a vector past the end.
    static constexpr size_t kPadding = 4096;

    const uint8_t* data() const { return memory_.data() + begin_; }
    size_t size() const { return size_; }
    size_t huge_bytes() const { return memory_.huge_bytes(); }

  private:
    void move_into_huge_pages();

    const LinearKernels& kernels_;
    ThreadPool& pool_;
    Buffer memory_;
    size_t begin_ = 0, size_ = 0, used_ = 0;
};

// XXH64 with seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
uint64_t xxh64(const uint8_t* data, size_t bytes);

} // namespace tuili
