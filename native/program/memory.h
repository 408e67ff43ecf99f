// Large aligned memory straight from the operating system.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tuili {

// Zeroed, page by page, when first touched. From 2 MiB on it is aligned to 2 MiB and huge pages are asked for: weights and KV
// are read once a step, and with small pages every 4 KiB costs a TLB miss.
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t bytes); // throws std::bad_alloc
    ~Buffer();
    Buffer(Buffer&& other) noexcept { *this = static_cast<Buffer&&>(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    uint8_t* data() const { return data_; }
    size_t size() const { return size_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }

  private:
    void* mapping_ = nullptr;
    size_t mapped_ = 0;
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

} // namespace tuili
