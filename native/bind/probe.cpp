// Probe: what the machine can do at best at this moment. Every method waits without the GIL.
#include "bench/probe.h"
#include "bind/bind.h"

namespace tuili {

namespace nb = nanobind;

void bind_probe(nb::module_& m) {
    using namespace nb::literals;
    const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
    nb::class_<Probe>(m, "Probe")
        .def(
            "__init__",
            [](Probe* self, int isa, int num_threads, size_t buffer_bytes) {
                new (self) Probe(static_cast<Isa>(isa), num_threads, buffer_bytes);
            },
            "isa"_a, "num_threads"_a, "buffer_bytes"_a, unlocked)
        .def("read_bandwidth", &Probe::read_bandwidth, unlocked)
        .def("small_page_read_bandwidth", &Probe::small_page_read_bandwidth, unlocked)
        .def("int8_peak", &Probe::int8_peak, unlocked)
        .def("fp32_peak", &Probe::fp32_peak, unlocked)
        .def("core_latency", &Probe::core_latency, unlocked);
}

} // namespace tuili
