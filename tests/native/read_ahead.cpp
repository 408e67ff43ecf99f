// What cursors of a ReadAhead are given: once each, in the order of reading, within what is allowed.
#include "threads/read_ahead.h"
#include <algorithm>
#include <cstdio>
#include <thread>

using namespace tuili;

namespace {

constexpr size_t kSlice = static_cast<size_t>(ReadAhead::kSlice);
constexpr size_t kRun = ReadAhead::Cursor::kLines * 64;

using Lines = std::vector<const uint8_t*>;

bool same(const char* name, const Lines& a, const Lines& b) {
    if (a == b) return true;
    std::printf("%s differs: %zu and %zu runs\n", name, a.size(), b.size());
    return false;
}

void append(Lines& lines, const uint8_t* from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += kRun) lines.push_back(from + at);
}

Lines take_all(ReadAhead& ahead) {
    ReadAhead::Cursor cursor;
    Lines lines;
    while (const uint8_t* next = cursor.take(ahead)) lines.push_back(next);
    return lines;
}

} // namespace

int main() {
    const std::vector<uint8_t> memory(64 * kSlice);
    const uint8_t *const alone = memory.data(), *const gate = alone + 8 * kSlice, *const up = alone + 16 * kSlice;
    const uint8_t* const last = alone + 32 * kSlice;
    ReadAhead ahead;
    bool good = same("before set()", take_all(ahead), {});
    ahead.set({{alone, nullptr, 2 * kSlice + 64}, {nullptr, nullptr, 0}, {gate, up, 2 * kSlice}, {last, nullptr, 32 * kSlice}});
    good &= same("nothing expected", take_all(ahead), {});

    Lines step;
    append(step, alone, 2 * kSlice); // what is left of it is less than a slice
    for (size_t slice = 0; slice < 2; slice++)
        for (const uint8_t* matrix : {gate, up}) append(step, matrix + slice * kSlice, kSlice);
    append(step, last, kSlice);
    ahead.restart(7 * kSlice);
    good &= same("over several stretches", take_all(ahead), step);

    Lines rest;
    append(rest, last + kSlice, kSlice);
    ahead.expect(2, 6 * kSlice); // begins before what was fetched: that is not fetched again
    good &= same("what is left of the allowance", take_all(ahead), rest);
    ahead.expect(3, 2 * kSlice);
    good &= same("all was fetched", take_all(ahead), {});
    ahead.expect(4, kSlice);
    good &= same("behind the end", take_all(ahead), {});

    ahead.restart(1024 * kSlice);
    Lines taken[3];
    std::vector<std::thread> threads;
    for (Lines& lines : taken) threads.emplace_back([&] { lines = take_all(ahead); });
    for (std::thread& thread : threads) thread.join();
    Lines together;
    for (const Lines& lines : taken) together.insert(together.end(), lines.begin(), lines.end());
    step.resize(6 * kSlice / kRun);
    append(step, last, 32 * kSlice);
    std::sort(together.begin(), together.end());
    std::sort(step.begin(), step.end());
    good &= same("three threads", together, step);
    if (good) std::puts("as expected");
    return good ? 0 : 1;
}
