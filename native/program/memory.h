// Large aligned memory straight from the operating system.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tuili {

// Aligned to 2 MiB from that size on, and huge pages are asked for: weights and KV are read once a step, and with small pages
// every 4 KiB costs a TLB miss.
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t bytes); // zeroed, page by page, when first touched; throws std::bad_alloc
    // A whole file to read: its pages are the file system's cache, huge where that keeps huge ones. Throws std::system_error.
    static Buffer map_file(const char* path);
    ~Buffer();
    Buffer(Buffer&& other) noexcept { *this = static_cast<Buffer&&>(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    uint8_t* data() const { return data_; }
    size_t size() const { return size_; }
    bool writable() const { return writable_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    // Bytes that lie in huge pages, as Linux counts them (/proc/self/smaps); 0 elsewhere.
    size_t huge_bytes() const;
    // Gives pages of a mapped file back to the system; reading them again brings them back.
    void release(size_t begin, size_t bytes) const;

  private:
    void reserve_addresses(size_t length);

    void* mapping_ = nullptr;
    size_t mapped_ = 0;
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
    bool writable_ = true;
};

} // namespace tuili
