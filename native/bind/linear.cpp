// The linear kernels of each ISA level, one call at a time, for tests.
#include "kernels/linear.h"
#include "bind/bind.h"
#include <cstdlib>
#include <memory>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace tuili {
namespace {

using Bytes2d = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats1d = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats2d = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints1d = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy, float>;

bool cpu_has(const std::string& isa) {
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (isa == "avx2") return avx2;
    if (isa == "avx512")
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#endif
    return isa == "generic";
}

const LinearKernels& kernels_of(const std::string& isa) {
    if (!cpu_has(isa)) throw std::invalid_argument("this CPU has no ISA level '" + isa + "'");
#if defined(__x86_64__)
    if (isa == "avx2") return linear_avx2();
    if (isa == "avx512") return linear_avx512();
#endif
    return linear_generic();
}

std::vector<std::string> levels() {
    std::vector<std::string> found;
    for (const char* isa : {"generic", "avx2", "avx512"})
        if (cpu_has(isa)) found.emplace_back(isa);
    return found;
}

struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<uint8_t, Free>;

Buffer aligned(size_t bytes) {
    void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (p == nullptr) throw std::bad_alloc();
    return Buffer(static_cast<uint8_t*>(p));
}

Result floats(int64_t rows, int64_t cols) {
    auto* data = new float[static_cast<size_t>(rows * cols)]();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return Result(data, {static_cast<size_t>(rows), static_cast<size_t>(cols)}, owner);
}

struct Matrix {
    const LinearKernels& kernels;
    PackedMatrix packed{};
    Buffer data;

    Matrix(const std::string& isa, int32_t format, Bytes2d rows, int64_t cols, std::optional<Ints1d> row_order)
        : kernels(kernels_of(isa)) {
        const auto type = static_cast<Format>(format);
        if (!kernels.supports(type, cols)) throw std::invalid_argument("format or number of columns not supported");
        const auto num_rows = static_cast<int64_t>(row_order ? row_order->shape(0) : rows.shape(0));
        packed = {type, num_rows, cols, kernels.tile_bytes(type, cols), nullptr};
        data = aligned(packed.tile_bytes * static_cast<size_t>(packed.num_tiles()));
        packed.data = data.get();
        kernels.pack(type, rows.data(), rows.shape(1), row_order ? row_order->data() : nullptr, num_rows, cols, 0,
                     packed.num_tiles(), data.get());
    }

    Result unpack() const {
        Result out = floats(packed.rows, packed.cols);
        for (int64_t row = 0; row < packed.rows; row++) kernels.unpack_row(packed, row, out.data() + row * packed.cols);
        return out;
    }

    struct Call {
        Buffer acts, scratch;
        Result out;
        LinearArgs args;
    };

    // Everything a call needs, as the executor prepares it; tiles are then run one range at a time.
    Call prepare(Floats2d x, std::optional<Floats1d> bias, std::optional<Ints1d> row_index, std::optional<Ints1d> out_index,
                 bool fine) const {
        if (static_cast<int64_t>(x.shape(1)) != packed.cols) throw std::invalid_argument("x has the wrong number of columns");
        const auto x_rows = static_cast<int64_t>(x.shape(0));
        const auto num_rows = row_index ? static_cast<int64_t>(row_index->shape(0)) : x_rows;
        Call c{aligned(kernels.activation_bytes(fine ? 2 * x_rows : x_rows, packed.cols)),
               aligned(kernels.scratch_bytes(packed.cols)),
               floats(num_rows, packed.rows),
               {}};
        const auto quantise = fine ? kernels.quantise_fine : kernels.quantise;
        if (packed.cols % 32 == 0) quantise(x.data(), packed.cols, x_rows, packed.cols, 0, x_rows, c.acts.get());
        c.args = {&packed,
                  bias ? bias->data() : nullptr,
                  x.data(),
                  packed.cols,
                  c.acts.get(),
                  x_rows,
                  fine,
                  row_index ? row_index->data() : nullptr,
                  out_index ? out_index->data() : nullptr,
                  num_rows,
                  0,
                  packed.num_tiles(),
                  c.out.data(),
                  packed.rows,
                  c.scratch.get()};
        return c;
    }

    Result linear(Floats2d x, std::optional<Floats1d> bias, std::optional<Ints1d> row_index, std::optional<Ints1d> out_index,
                  int64_t tiles_at_once, bool fine) const {
        Call c = prepare(x, bias, row_index, out_index, fine);
        for (int64_t t = 0; t < packed.num_tiles(); t += tiles_at_once) {
            c.args.tile0 = t;
            c.args.tile1 = t + tiles_at_once < packed.num_tiles() ? t + tiles_at_once : packed.num_tiles();
            kernels.linear(c.args);
        }
        return c.out;
    }

    Result gate_up_act(const Matrix& up, Floats2d x, int32_t act, std::optional<Floats1d> bias,
                       std::optional<Floats1d> up_bias) const {
        if (&kernels != &up.kernels || packed.rows != up.packed.rows || packed.cols != up.packed.cols)
            throw std::invalid_argument("gate and up differ in shape or ISA level");
        Call c = prepare(x, bias, std::nullopt, std::nullopt, false);
        kernels.gate_up_act(c.args, up.packed, up_bias ? up_bias->data() : nullptr, static_cast<Act>(act));
        return c.out;
    }
};

Result decode_rows(const std::string& isa, int32_t format, Bytes2d rows, int64_t cols) {
    const LinearKernels& kernels = kernels_of(isa);
    if (!kernels.supports(static_cast<Format>(format), cols))
        throw std::invalid_argument("format or number of columns not supported");
    Result out = floats(static_cast<int64_t>(rows.shape(0)), cols);
    for (size_t r = 0; r < rows.shape(0); r++)
        kernels.decode_row(static_cast<Format>(format), rows.data() + r * rows.shape(1), cols,
                           out.data() + static_cast<int64_t>(r) * cols);
    return out;
}

bool supports(const std::string& isa, int32_t format, int64_t cols) {
    return kernels_of(isa).supports(static_cast<Format>(format), cols);
}

} // namespace

void bind_linear(nb::module_& m) {
    m.def("linear_levels", levels, "ISA levels that this CPU can run.");
    m.def("linear_supports", supports, nb::arg("isa"), nb::arg("format"), nb::arg("cols"));
    m.def("linear_decode_rows", decode_rows, nb::arg("isa"), nb::arg("format"), nb::arg("rows"), nb::arg("cols"));
    nb::class_<Matrix>(m, "LinearMatrix")
        .def(nb::init<const std::string&, int32_t, Bytes2d, int64_t, std::optional<Ints1d>>(), nb::arg("isa"), nb::arg("format"),
             nb::arg("rows"), nb::arg("cols"), nb::arg("row_order") = nb::none())
        .def("unpack", &Matrix::unpack)
        .def("linear", &Matrix::linear, nb::arg("x"), nb::arg("bias") = nb::none(), nb::arg("row_index") = nb::none(),
             nb::arg("out_index") = nb::none(), nb::arg("tiles_at_once") = 4, nb::arg("fine") = false)
        .def("gate_up_act", &Matrix::gate_up_act, nb::arg("up"), nb::arg("x"), nb::arg("act"), nb::arg("bias") = nb::none(),
             nb::arg("up_bias") = nb::none());
}

} // namespace tuili
