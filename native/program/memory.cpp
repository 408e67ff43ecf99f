#include "program/memory.h"
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fcntl.h>
#include <memory>
#include <new>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace tuili {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

void ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
    if (bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE); // best effort: small pages work too
#endif
}

struct Descriptor {
    int number;
    ~Descriptor() { close(number); }
};

[[noreturn]] void fail(const char* path) { throw std::system_error(errno, std::generic_category(), path); }
} // namespace

// Addresses of `length` bytes for data_, aligned as their number deserves; nothing lies there yet.
void Buffer::reserve_addresses(size_t length) {
    const bool huge = length >= kHugePage;
    mapped_ = huge ? length + kHugePage : length;
    mapping_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<uintptr_t>(mapping_);
    data_ = reinterpret_cast<uint8_t*>(huge ? round_up(address, kHugePage) : address);
}

Buffer::Buffer(size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    // One page more than asked for: kernels may read (never use) a vector past the end.
    const size_t length = round_up(bytes, kPage) + kPage;
    Buffer addresses; // owns what is reserved until everything has worked
    addresses.reserve_addresses(length);
    void* const data = mmap(addresses.data_, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    ask_for_huge_pages(data, length);
    std::swap(mapping_, addresses.mapping_);
    std::swap(mapped_, addresses.mapped_);
    data_ = addresses.data_;
}

Buffer Buffer::map_file(const char* path) {
    const Descriptor file{open(path, O_RDONLY | O_CLOEXEC)};
    struct stat status{};
    if (file.number < 0 || fstat(file.number, &status) != 0) fail(path);
    Buffer buffer;
    buffer.size_ = static_cast<size_t>(status.st_size);
    buffer.writable_ = false;
    if (buffer.size_ == 0) return buffer;
    buffer.reserve_addresses(buffer.size_);
    if (mmap(buffer.data_, buffer.size_, PROT_READ, MAP_SHARED | MAP_FIXED, file.number, 0) == MAP_FAILED) fail(path);
    ask_for_huge_pages(buffer.data_, buffer.size_);
    return buffer;
}

Buffer::~Buffer() {
    if (mapping_) munmap(mapping_, mapped_);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(writable_, other.writable_);
    return *this;
}

void Buffer::release(size_t begin, size_t bytes) const {
    const size_t first = round_up(begin, kPage), end = (begin + bytes) / kPage * kPage;
    if (end > first) madvise(data_ + first, end - first, MADV_DONTNEED);
}

size_t Buffer::huge_bytes() const {
    const std::unique_ptr<FILE, int (*)(FILE*)> maps(fopen("/proc/self/smaps", "re"), fclose);
    if (!maps) return 0;
    const auto begin = reinterpret_cast<uintptr_t>(data_), end = begin + size_;
    uintptr_t first = 0, last = 0;
    size_t kilobytes = 0, count = 0;
    char line[512], kind[64];
    while (fgets(line, sizeof line, maps.get())) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &last) == 2) {
            if (first >= end) break; // they come in ascending order
        } else if (first < end && last > begin && sscanf(line, "%63[A-Za-z]: %zu kB", kind, &count) == 2) {
            for (const char* name : {"AnonHugePages", "FilePmdMapped", "ShmemPmdMapped"})
                if (std::string_view(kind) == name) kilobytes += count;
        }
    }
    return std::min(kilobytes * 1024, size_); // a neighbour of the same kind may share the line
}

} // namespace tuili
