"""The probes of the machine: plausible figures on every level, whatever the number of threads."""

import pytest

from tuili import _native
from tuili.backends.cpu.native import ISA_NAMES, best_isa
from tuili.bench.probes import Limits, Prober, between, steady
from tuili.errors import BackendError

SMALL = 16 * 2**20
LEVELS = range(_native.best_isa() + 1)


@pytest.mark.parametrize("isa", LEVELS, ids=lambda isa: ISA_NAMES[isa])
@pytest.mark.parametrize("threads", [1, 2])
def test_figures_are_plausible(isa: int, threads: int) -> None:
    probe = _native.Probe(isa, threads, SMALL)
    for bandwidth in (probe.read_bandwidth(), probe.small_page_read_bandwidth(), probe.small_page_read_bandwidth()):
        assert 1e8 < bandwidth < 1e13
    assert 1e7 < probe.fp32_peak() < 1e14
    assert 1e7 < probe.int8_peak() < 1e15


def test_vectors_beat_scalars() -> None:
    if len(LEVELS) == 1:
        pytest.skip("this CPU has no vector level")
    best, generic = _native.Probe(LEVELS[-1], 1, SMALL), _native.Probe(0, 1, SMALL)
    assert best.int8_peak() > 2 * generic.int8_peak()


def test_latency_between_cores() -> None:
    for threads in (2, 3):
        assert 1e-9 < _native.Probe(0, threads, SMALL).core_latency() < 0.1
    with pytest.raises(ValueError, match="two threads"):
        _native.Probe(0, 1, SMALL).core_latency()


def test_the_prober_measures_everything() -> None:
    limits = Prober(threads=1).measure()
    assert min(limits.read_bandwidth, limits.int8_peak, limits.fp32_peak) > 1e7
    assert limits.core_latency == 0 and "core to core" not in str(limits)
    assert "core to core" in str(Prober(threads=2, isa="generic").measure())


def test_what_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuili.bench.probes.MIN_BUFFER_BYTES", 2**60)
    with pytest.raises(BackendError, match="MiB of it, which are not free"):
        Prober(threads=1)
    if best_isa() != "avx512":
        with pytest.raises(BackendError, match="this CPU can run"):
            Prober(isa="avx512")


def test_limits_of_what_ran_between_two_measurements() -> None:
    assert between(Limits(1e9, 2e9, 3e9, 1e-7), Limits(3e9, 4e9, 5e9, 3e-7)) == Limits(2e9, 3e9, 4e9, 2e-7)


def test_limits_that_moved_are_not_steady() -> None:
    first = Limits(10e9, 100e9, 20e9, 1e-7)
    assert steady(first, Limits(11e9, 100e9, 20e9, 5e-7))
    for moved in (Limits(12e9, 100e9, 20e9, 1e-7), Limits(10e9, 80e9, 20e9, 1e-7), Limits(10e9, 100e9, 15e9, 1e-7)):
        assert not steady(first, moved) and not steady(moved, first)
