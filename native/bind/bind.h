// The parts of the Python module, one function a file.
#pragma once
#include <nanobind/nanobind.h>

namespace tuili {

class Executor;

void bind_linear(nanobind::module_& m);
void bind_executor(nanobind::module_& m);
void bind_steps(nanobind::module_& m, nanobind::class_<Executor>& c);
void bind_weights(nanobind::class_<Executor>& c);
void bind_kernels(nanobind::module_& m);
void bind_probe(nanobind::module_& m);

} // namespace tuili
