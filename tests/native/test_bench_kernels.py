"""What ``tuili bench kernels`` times is right: the results of the very programs it runs, beside the reference backend's."""

import numpy as np
import pytest

from support.compare import nmse
from tuili.backends.base import Limits
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.reference.executor import ReferenceBackend
from tuili.bench import kernels, probes
from tuili.bench.kernels import Heads, KernelBench, Shape
from tuili.bench.probes import Prober
from tuili.errors import BackendError
from tuili.program.ops import OPS
from tuili.program.program import Program
from tuili.quant.registry import FORMATS


def both(program: Program, fmt: str, rows: int, context: int) -> tuple[np.ndarray, np.ndarray]:
    """The output row of the native executor and of the reference."""
    groups = len(program.state_groups())
    limits = Limits(context, 1, rows, (-(-context // 16),) * groups)
    weights, step = kernels.matrix_weights(program, fmt), kernels.step_input(rows, context, groups)
    native, reference = CpuBackend().load(program, weights, limits), ReferenceBackend().load(program, weights, limits)
    try:
        return native.run(step), reference.run(step)
    finally:
        native.close()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("op", kernels.MATRIX_OPS)
def test_matrix_programs_compute_what_the_reference_does(op: str, fmt: str) -> None:
    program = kernels.matrix_program(op, Shape(256, 48), 2)
    for rows in (1, 40):
        native, reference = both(program, fmt, rows, rows)
        assert nmse(reference, native) < OPS["linear"].max_nmse * 2, rows


def test_attention_programs_compute_what_the_reference_does() -> None:
    native, reference = both(kernels.attention_program(Heads(4, 2, 32), 2), "F32", 40, 40)
    assert nmse(reference, native) < OPS["attention"].max_nmse


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> KernelBench:
    monkeypatch.setattr(kernels, "_copies", lambda num_bytes: 2)
    monkeypatch.setattr(kernels, "MIN_SECONDS", 0.0)
    backend = CpuBackend(threads=2)
    return KernelBench(backend, Prober(backend.threads))


def test_figures_of_matrices(bench: KernelBench) -> None:
    one, many = bench.matrix("gate_up_act", "Q4_K", Shape(256, 64), (1, 33))
    assert (one.rows, many.rows, one.format, one.shape) == (1, 33, "Q4_K", "256x64")
    assert one.work.num_bytes == 2 * 64 * 144
    assert many.work.int8_operations == 2 * 2 * 33 * 64 * 256
    for figure in (one, many):
        assert 0 < figure.seconds < 60 and figure.part_of_limit > 0
        assert figure.operations_per_second == pytest.approx(figure.work.operations / figure.seconds)
        assert figure.bound in ("memory", "int8", "fp32")


def test_figures_of_attention(bench: KernelBench) -> None:
    one, many = bench.attention(Heads(4, 2, 32), 40, 1), bench.attention(Heads(4, 2, 32), 40, 40)
    assert one.work.num_bytes == many.work.num_bytes == 40 * 2 * 2 * 32 * 2
    assert one.work.fp32_operations == 4 * 40 * 4 * 32
    assert many.work.fp32_operations == 4 * (40 * 41 // 2) * 4 * 32
    assert one.seconds > 0 and many.shape == "4/2x32, context 40"


def test_a_shape_without_a_kernel(bench: KernelBench) -> None:
    assert bench.problem("Q4_K", Shape(96, 64)) and not bench.problem("Q8_0", Shape(96, 64))
    with pytest.raises(BackendError, match=r"no .* kernel for Q4_K matrices of 352 columns"):
        list(bench.matrix("linear", "Q4_K", Shape(352, 64), (1,)))


def test_a_figure_is_taken_again_when_the_limits_moved(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet machine, one that is disturbed once, and one that is never quiet: figures all the same, the last try's limits."""

    class Scripted:
        def __init__(self, *bandwidths: float) -> None:
            self.bandwidths = list(bandwidths)

        def measure(self) -> probes.Limits:
            return probes.Limits(self.bandwidths.pop(0), 1e11, 1e10, 0.0)

    for bandwidths, expected in (((1e9, 1e9), 1e9), ((1e9, 2e9, 2e9, 2e9), 2e9), ((1e9, 2e9) * 3, 1.5e9)):
        prober = Scripted(*bandwidths)
        monkeypatch.setattr(bench, "prober", prober)
        (figure,) = bench.matrix("linear", "Q8_0", Shape(64, 32), (1,))
        assert figure.limits.read_bandwidth == expected and not prober.bandwidths
