#include "threads/read_ahead.h"
#include <algorithm>

namespace tuili {

void ReadAhead::set(const std::vector<Stretch>& stretches) {
    stretches_ = stretches;
    starts_.assign(1, 0);
    for (const Stretch& s : stretches_)
        starts_.push_back(starts_.back() + static_cast<int64_t>(s.bytes) / kSlice * (s.second ? 2 : 1));
}

void ReadAhead::expect(size_t next, size_t bytes) {
    const int64_t first = starts_[next];
    if (next_.load(std::memory_order_relaxed) < first) next_.store(first, std::memory_order_relaxed);
    allow(first, bytes);
}

void ReadAhead::restart(size_t bytes) {
    next_.store(0, std::memory_order_relaxed);
    allow(0, bytes);
}

void ReadAhead::allow(int64_t first, size_t bytes) {
    end_.store(std::min(first + static_cast<int64_t>(bytes) / kSlice, starts_.back()), std::memory_order_release);
}

bool ReadAhead::locate(int64_t slice, Cursor& cursor) const {
    if (slice >= starts_.back()) return false; // several threads may overshoot the end
    const auto s = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), slice) - starts_.begin()) - 1;
    const Stretch& stretch = stretches_[s];
    const int64_t i = slice - starts_[s];
    if (stretch.second)
        cursor.at_ = (i % 2 ? stretch.second : stretch.first) + i / 2 * kSlice;
    else
        cursor.at_ = stretch.first + i * kSlice;
    cursor.left_ = static_cast<int>(kSlice / (Cursor::kLines * 64));
    return true;
}

} // namespace tuili
