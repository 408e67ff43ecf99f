#include "program/memory.h"
#include <new>
#include <sys/mman.h>
#include <utility>

namespace tuili {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
} // namespace

Buffer::Buffer(size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    const bool huge = bytes >= kHugePage;
    // One page more than asked for: kernels may read (never use) a vector past the end.
    const size_t length = round_up(bytes, kPage) + kPage;
    mapped_ = huge ? length + kHugePage : length;
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<uintptr_t>(mapping_);
    data_ = reinterpret_cast<uint8_t*>(huge ? round_up(address, kHugePage) : address);
#ifdef MADV_HUGEPAGE
    if (huge) madvise(data_, length, MADV_HUGEPAGE); // best effort: small pages work too
#endif
}

Buffer::~Buffer() {
    if (mapping_) munmap(mapping_, mapped_);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

} // namespace tuili
