// The Python module: the only door between Python and the native backend.
#include "bind/bind.h"
#include "program/isa.h"
#include "threads/pool.h"

NB_MODULE(_native, m) {
    m.doc() = "Native CPU backend";
    m.attr("__version__") = TUILI_VERSION;
    m.attr("ISA_LEVELS") = nanobind::make_tuple("generic", "avx2", "avx512");
    m.def(
        "best_isa", [] { return static_cast<int>(tuili::best_isa()); },
        "Index into ISA_LEVELS of the best level of this machine.");
    m.def("usable_cpus", &tuili::usable_cpus, "CPUs of the affinity mask, within the cgroup's quota.");
    tuili::bind_executor(m);
    tuili::bind_kernels(m);
    tuili::bind_linear(m);
    tuili::bind_probe(m);
}
