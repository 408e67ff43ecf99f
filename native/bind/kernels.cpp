// Questions about the kernels of a level, and the thread pool by itself (for tests).
#include "bind/arrays.h"
#include "bind/bind.h"
#include "program/isa.h"
#include "program/packed_weights.h"
#include "threads/pool.h"
#include <atomic>
#include <memory>

namespace tuili {

namespace {

// Sum over chunks of (chunk + 1), every chunk run once: what a test of the pool can check.
int64_t sum_chunks(ThreadPool& pool, int64_t num_chunks) {
    std::atomic<int64_t> sum{0};
    pool.run(num_chunks, [&](int64_t chunk, int) { sum.fetch_add(chunk + 1, std::memory_order_relaxed); });
    return sum.load();
}

} // namespace

void bind_kernels(nb::module_& m) {
    using namespace nb::literals;
    m.def(
        "supports",
        [](int isa, int format, int64_t cols) {
            return kernels_of(static_cast<Isa>(isa)).linear.supports(static_cast<Format>(format), cols);
        },
        "isa"_a, "format"_a, "cols"_a);
    m.def(
        "reads_acts",
        [](int isa, int format) { return kernels_of(static_cast<Isa>(isa)).linear.reads_acts(static_cast<Format>(format)); },
        "isa"_a, "format"_a);
    m.def(
        "pack_rows", // one layout's bytes, for tests and for its fingerprint
        [](int isa, int format, const Array2<const uint8_t>& rows, int64_t cols) {
            const LinearKernels& kernels = kernels_of(static_cast<Isa>(isa)).linear;
            const auto num_rows = static_cast<int64_t>(rows.shape(0)), tiles = (num_rows + kTileRows - 1) / kTileRows;
            const Buffer packed(kernels.tile_bytes(static_cast<Format>(format), cols) * static_cast<size_t>(tiles));
            kernels.pack(static_cast<Format>(format), rows.data(), rows.shape(1), nullptr, num_rows, cols, 0, tiles,
                         packed.data());
            return nb::bytes(packed.data(), packed.size());
        },
        "isa"_a, "format"_a, "rows"_a, "cols"_a);
    m.def("xxh64", [](const nb::bytes& data) { return xxh64(static_cast<const uint8_t*>(data.data()), data.size()); });
    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int>(), "num_threads"_a)
        .def("sum_chunks", &sum_chunks, "num_chunks"_a, nb::call_guard<nb::gil_scoped_release>());
}

} // namespace tuili
