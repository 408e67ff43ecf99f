#include "program/packed_weights.h"
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace tuili {

namespace {

constexpr size_t kAlignment = 64;

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu, kPrime3 = 0x165667B19E3779F9u,
                   kPrime4 = 0x85EBCA77C2B2AE63u, kPrime5 = 0x27D4EB2F165667C5u;

uint64_t read64(const uint8_t* p) {
    uint64_t value;
    std::memcpy(&value, p, 8);
    return value;
}
uint64_t read32(const uint8_t* p) {
    uint32_t value;
    std::memcpy(&value, p, 4);
    return value;
}
uint64_t round(uint64_t sum, uint64_t input) { return std::rotl(sum + input * kPrime2, 31) * kPrime1; }
uint64_t merge(uint64_t hash, uint64_t sum) { return (hash ^ round(0, sum)) * kPrime1 + kPrime4; }

} // namespace

uint64_t xxh64(const uint8_t* p, size_t bytes) {
    const uint8_t* const end = p + bytes;
    uint64_t hash = kPrime5;
    if (bytes >= 32) {
        uint64_t a = kPrime1 + kPrime2, b = kPrime2, c = 0, d = 0 - kPrime1;
        for (; end - p >= 32; p += 32) {
            a = round(a, read64(p));
            b = round(b, read64(p + 8));
            c = round(c, read64(p + 16));
            d = round(d, read64(p + 24));
        }
        hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    }
    hash += bytes;
    for (; end - p >= 8; p += 8) hash = std::rotl(hash ^ round(0, read64(p)), 27) * kPrime1 + kPrime4;
    for (; end - p >= 4; p += 4) hash = std::rotl(hash ^ read32(p) * kPrime1, 23) * kPrime2 + kPrime3;
    for (; p < end; p++) hash = std::rotl(hash ^ *p * kPrime5, 11) * kPrime1;
    hash = (hash ^ hash >> 33) * kPrime2;
    hash = (hash ^ hash >> 29) * kPrime3;
    return hash ^ hash >> 32;
}

size_t PackedWeights::packed_bytes(Format format, int64_t rows, int64_t cols) const {
    const auto tiles = static_cast<size_t>((rows + kTileRows - 1) / kTileRows);
    return (kernels_.tile_bytes(format, cols) * tiles + kAlignment - 1) / kAlignment * kAlignment;
}

void PackedWeights::reserve(size_t bytes) {
    memory_ = Buffer(bytes);
    begin_ = used_ = 0;
    size_ = bytes;
}

PackedMatrix PackedWeights::place(Format format, int64_t rows, int64_t cols) {
    const size_t bytes = packed_bytes(format, rows, cols);
    if (used_ + bytes > size_) throw std::length_error("weights are larger than what was reserved for them");
    const PackedMatrix matrix{format, rows, cols, kernels_.tile_bytes(format, cols), data() + used_};
    used_ += bytes;
    return matrix;
}

void PackedWeights::pack(const PackedMatrix& matrix, int64_t first, int64_t count, const uint8_t* rows, size_t stride) {
    if (!memory_.writable()) throw std::logic_error("these weights are mapped from a file: they are packed already");
    const bool whole_tiles = first % kTileRows == 0 && (count % kTileRows == 0 || first + count == matrix.rows);
    if (first < 0 || count < 1 || first + count > matrix.rows || !whole_tiles)
        throw std::invalid_argument("not rows of the matrix, or not whole tiles of them");
    uint8_t* const packed =
        memory_.data() + (matrix.data - memory_.data()) + static_cast<size_t>(first / kTileRows) * matrix.tile_bytes;
    const int64_t tiles = (count + kTileRows - 1) / kTileRows;
    const int64_t chunk = std::clamp<int64_t>(tiles / (pool_.num_threads() * 4), 1, 64);
    pool_.run((tiles + chunk - 1) / chunk, [&](int64_t i, int) {
        kernels_.pack(matrix.format, rows, stride, nullptr, count, matrix.cols, i * chunk, std::min(tiles, (i + 1) * chunk),
                      packed);
    });
}

std::vector<uint64_t> PackedWeights::digests() const {
    std::vector<uint64_t> result((size_ + kPiece - 1) / kPiece);
    pool_.run(static_cast<int64_t>(result.size()), [&](int64_t i, int) {
        const size_t first = static_cast<size_t>(i) * kPiece;
        result[static_cast<size_t>(i)] = xxh64(data() + first, std::min(kPiece, size_ - first));
    });
    return result;
}

int64_t PackedWeights::map(const char* path, size_t offset, size_t bytes, const std::vector<uint64_t>& digests) {
    memory_ = Buffer::map_file(path);
    if (memory_.size() < offset + bytes + kPadding) throw std::length_error("the file ends before the weights do");
    begin_ = offset;
    size_ = bytes;
    used_ = 0;
    const std::vector<uint64_t> found = this->digests();
    const auto [actual, expected] = std::mismatch(found.begin(), found.end(), digests.begin(), digests.end());
    if (actual != found.end() || expected != digests.end()) return actual - found.begin();
    move_into_huge_pages();
    return -1;
}

void PackedWeights::move_into_huge_pages() {
    if (memory_.huge_bytes() * 2 >= size_ || size_ < 4 * kPiece) return;
    Buffer huge(size_);
    std::memcpy(huge.data(), data(), kPiece);
    if (huge.huge_bytes() == 0) return; // this system has none to give
    pool_.run(static_cast<int64_t>((size_ + kPiece - 1) / kPiece), [&](int64_t i, int) {
        const size_t first = static_cast<size_t>(i) * kPiece, count = std::min(kPiece, size_ - first);
        std::memcpy(huge.data() + first, data() + first, count);
        memory_.release(begin_ + first, count);
    });
    memory_ = static_cast<Buffer&&>(huge);
    begin_ = 0;
}

} // namespace tuili
