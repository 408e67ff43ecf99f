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

void pack(Executor& e, WeightId id, const std::vector<Rows>& matrices) {
    const Weight& weight = e.plan().weights.at(static_cast<size_t>(id));
    if (matrices.size() != weight.matrices.size()) throw std::invalid_argument("not one array a matrix");
    for (size_t i = 0; i < matrices.size(); i++) {
        const Rows& m = matrices[i];
        if (m.stride(1) != 1) throw std::invalid_argument("the bytes of a row have to lie side by side");
        if (static_cast<int64_t>(m.shape(0)) != weight.rows()) throw std::invalid_argument("not the rows of the matrix");
        const auto* data = m.data();
        const auto stride = static_cast<size_t>(m.stride(0));
        nb::gil_scoped_release unlocked;
        e.weights().pack(weight.matrices[i], data, stride);
    }
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
    c.def("pack", &pack, "weight"_a, "matrices"_a);
    c.def("packed_data", &packed_data);
    c.def("packed_digests", [](Executor& e) { return e.weights().digests(); }, nb::call_guard<nb::gil_scoped_release>());
    c.def("huge_weight_bytes", [](Executor& e) { return e.weights().huge_bytes(); });
    c.attr("PACK_PADDING") = PackedWeights::kPadding;
}

} // namespace tuili
