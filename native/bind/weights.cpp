// Executor's weights: placed and packed from a model file, or mapped from a file of packed ones.
#include "bind/arrays.h"
#include "bind/bind.h"
#include "program/executor.h"
#include <nanobind/stl/vector.h>

namespace tuili {

namespace {

using Rows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;

WeightId place(Executor& e, int format, int64_t count, int64_t rows, int64_t cols) {
    Weight weight;
    for (int64_t i = 0; i < count; i++) weight.matrices.push_back(e.weights().place(static_cast<Format>(format), rows, cols));
    e.plan().weights.push_back(std::move(weight));
    return static_cast<WeightId>(e.plan().weights.size() - 1);
}

void pack(Executor& e, WeightId id, int64_t index, int64_t first_row, const Rows& rows) {
    const PackedMatrix& matrix = e.plan().weights.at(static_cast<size_t>(id)).matrices.at(static_cast<size_t>(index));
    if (rows.stride(1) != 1) throw std::invalid_argument("the bytes of a row have to lie side by side");
    const auto* data = rows.data();
    const auto stride = static_cast<size_t>(rows.stride(0));
    const auto count = static_cast<int64_t>(rows.shape(0));
    nb::gil_scoped_release unlocked;
    e.weights().pack(matrix, first_row, count, data, stride);
}

TableId add_table(Executor& e, int format, int64_t cols, const Rows& rows) {
    const auto type = static_cast<Format>(format);
    if (!e.kernels().linear.supports(type, cols)) throw std::invalid_argument("format or number of columns not supported");
    if (rows.stride(1) != 1) throw std::invalid_argument("the bytes of a row have to lie side by side");
    e.plan().tables.push_back(
        {type, static_cast<int64_t>(rows.shape(0)), cols, static_cast<size_t>(rows.stride(0)), rows.data()});
    return static_cast<TableId>(e.plan().tables.size() - 1);
}

// A view: valid as long as the executor.
auto packed_data(Executor& e) {
    const size_t size = e.weights().size();
    return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(e.weights().data(), {size}, nb::find(e));
}

} // namespace

void bind_weights(nb::class_<Executor>& c) {
    using namespace nb::literals;
    c.def("packed_bytes", [](Executor& e, int format, int64_t rows, int64_t cols) {
        return e.weights().packed_bytes(static_cast<Format>(format), rows, cols);
    });
    c.def("reserve_weights", [](Executor& e, size_t bytes) { e.weights().reserve(bytes); });
    c.def(
        "map_weights",
        [](Executor& e, const char* path, size_t offset, size_t bytes, const std::vector<uint64_t>& digests) {
            nb::gil_scoped_release unlocked;
            return e.weights().map(path, offset, bytes, digests);
        },
        "path"_a, "offset"_a, "num_bytes"_a, "digests"_a, "The first piece that differs from its digest, or -1.");
    c.def("place", &place, "format"_a, "num_matrices"_a, "rows"_a, "cols"_a);
    c.def("pack", &pack, "weight"_a, "index"_a, "first_row"_a, "rows"_a, "Of one of the weight's matrices, from a row on.");
    c.def("add_table", &add_table, "format"_a, "cols"_a, "rows"_a, nb::keep_alive<1, 4>(), "Rows that stay where they lie.");
    c.def("packed_data", &packed_data);
    c.def("packed_digests", [](Executor& e) { return e.weights().digests(); }, nb::call_guard<nb::gil_scoped_release>());
    c.def("huge_weight_bytes", [](Executor& e) { return e.weights().huge_bytes(); });
    c.attr("PACK_PADDING") = PackedWeights::kPadding;
}

} // namespace tuili
