"""Which backend runs a model, and why. Backends are imported when chosen, not before."""

from collections.abc import Sequence
from typing import get_args

from tuili.backends.base import Backend
from tuili.config.options import BackendName, IsaName
from tuili.errors import ConfigError

KNOWN: tuple[BackendName, ...] = ("auto", "cpu", "reference", "fake")


def select_backend(
    name: BackendName,
    *,
    isa: IsaName | None = None,
    threads: int | None = None,
    cpus: Sequence[int] | None = None,
    profile: bool = False,
) -> tuple[Backend, str]:
    """The backend, and why, in words. ``isa`` and ``threads`` matter to the CPU backend only; None: the best, all usable CPUs.
    ``cpus``: CPUs to bind threads to. ``profile``: keep times by op.

    Raises ConfigError for an unknown name or isa and for what the backend cannot do, BackendError when it cannot run here.
    """
    if profile and name in ("reference", "fake"):
        raise ConfigError(f"backend {name} keeps no times of its ops; a profile needs --backend cpu")
    if cpus is not None and name in ("reference", "fake"):
        raise ConfigError(f"backend {name} has no threads of its own to bind to CPUs; --cpu-list needs --backend cpu")
    if name == "reference":
        from tuili.backends.reference.executor import ReferenceBackend

        return ReferenceBackend(), "reference: as asked; slow, for tests"
    if name == "fake":
        from tuili.backends.fake import FakeBackend

        return FakeBackend(), "fake: as asked; makes tokens up, for tests"
    if name not in KNOWN:
        raise ConfigError(f"backend {name!r} is unknown; known are {', '.join(KNOWN)}")
    if isa not in (None, *get_args(IsaName)):
        raise ConfigError(f"isa is {isa!r}; it has to be one of {', '.join(get_args(IsaName))}, or left out to take the best")
    from tuili.backends.cpu.executor import CpuBackend

    why = "cpu: as asked" if name == "cpu" else "cpu: the only backend for this machine"
    return CpuBackend(isa=isa, threads=threads, cpus=cpus, profile=profile), why
