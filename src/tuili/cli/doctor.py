"""``tuili doctor``: this machine as Tuili sees it, and which backend would run and why."""

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from tuili import __version__
from tuili.backends.cpu.pack_cache import PackCache
from tuili.cli.console import show_facts, show_json, size_text, style
from tuili.cli.models import open_store
from tuili.cli.options import json_option
from tuili.config.machine import MachineFacts, cpu_model, read_machine
from tuili.config.options import EngineOptions
from tuili.config.resolve import choose_threads
from tuili.config.sources import pack_dir, read_settings
from tuili.errors import TuiliError

LIBRARIES = ("numpy", "tokenizers", "jinja2", "fastapi", "uvicorn", "httpx2")

#: Flags of /proc/cpuinfo that the instruction set levels are made of.
SIMD_FLAGS = ("avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Facts by topic; ``advice`` is what the user might want to change; ``usable``: a model would run."""

    facts: dict[str, dict[str, Any]]
    advice: list[str]
    usable: bool


@click.command("doctor")
@json_option
def command(as_json: bool) -> int:
    """Look at this machine: processor, memory, disk, versions; which backend would run, and why.

    The exit code is 1 when no model could run here.
    """
    found = diagnose()
    if as_json:
        show_json({**found.facts, "advice": found.advice, "usable": found.usable})
    else:
        for topic, facts in found.facts.items():
            click.echo(style(topic, bold=True))
            show_facts([(f"  {name}", _in_words(name, value)) for name, value in facts.items()])
        for line in found.advice or ["Nothing to complain about."]:
            click.echo(f"\n{line}")
    return 0 if found.usable else 1


def diagnose() -> Diagnosis:
    """Look at everything once."""
    machine = read_machine()
    backend, usable = _backend(machine)
    store = open_store()
    facts: dict[str, dict[str, Any]] = {
        "software": {
            "tuili": __version__,
            "python": f"{platform.python_version()} ({sys.executable})",
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            **{name: _version(name) for name in LIBRARIES},
        },
        "processor": {"model": cpu_model(), **_cpus(machine), "instructions": ", ".join(_cpu_flags())},
        "memory": {
            "total_bytes": machine.total_memory,
            "free_bytes": machine.available_memory,
            "limit_bytes": machine.memory_limit,
            "huge_pages": _huge_pages(),
        },
        "disk": {"home": str(store.home), "free_bytes": _free_disk(store.home), **_packs()},
        "models": _models(),
        "backend": backend,
        "speed": _speed(machine),
    }
    return Diagnosis(facts, list(_advice(machine, facts)), usable)


def _backend(machine: MachineFacts) -> tuple[dict[str, Any], bool]:
    """What ``--backend auto`` would choose, with the settings of this process, and why."""
    from tuili.backends.select import select_backend

    try:
        isa: Any = read_settings().choice("isa", ("generic", "avx2", "avx512"))
        backend, why = select_backend("auto", isa=isa, threads=machine.num_cpus)
    except TuiliError as error:
        return {"would_run": None, "why": str(error)}, False
    return {"would_run": backend.name, "why": why}, True


def _speed(machine: MachineFacts) -> dict[str, Any]:
    """What processors and memory give at this moment: a fifth of a second, and 256 MiB that have to be free."""
    from tuili.bench.probes import Prober

    threads, _ = choose_threads(EngineOptions(), machine)
    try:
        return {"threads": threads, **Prober(threads).measure().record()}
    except TuiliError as error:
        return {"problem": str(error)}


def _packs() -> dict[str, Any]:
    count, size = PackCache(pack_dir(), write=False, max_bytes=0).usage()
    return {"packed_models": count, "packed_bytes": size}


def _huge_pages() -> str | None:
    """When Linux gives them out: always, madvise (to programs that ask, as this one does) or never."""
    try:
        modes = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    except OSError:
        return None
    return modes.partition("[")[2].partition("]")[0]


def _models() -> dict[str, Any]:
    try:
        models = open_store().models()
    except TuiliError as error:
        return {"problem": str(error)}
    return {"here": [manifest.full_name for manifest in models], "size_bytes": sum(manifest.size for manifest in models)}


def _advice(machine: MachineFacts, facts: dict[str, dict[str, Any]]) -> Iterator[str]:
    if facts["backend"]["would_run"] is None:
        yield f"No backend can run here: {facts['backend']['why']}"
    elif facts["backend"]["would_run"] != "cpu":
        yield f"The native backend is not used, so everything is slow: {facts['backend']['why']}"
    if "problem" in facts["models"]:
        yield facts["models"]["problem"]
    elif not facts["models"]["here"]:
        yield "No model is here yet: `tuili pull smollm2` fetches the smallest, `tuili list --all` shows the others."
    if facts["disk"]["free_bytes"] < 2 * 10**9:
        disk = facts["disk"]
        yield f"Only {size_text(disk['free_bytes'])} are free in {disk['home']}; TUILI_HOME may name another disk."
    if facts["memory"]["huge_pages"] == "never":
        yield "Huge pages are off, which costs speed; as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    if machine.available_memory < 10**9:
        yield f"Only {size_text(machine.available_memory)} of memory are free: models above a few hundred megabytes will not fit."


def _cpus(machine: MachineFacts) -> dict[str, Any]:
    return {"processors": machine.num_cpus, "cores": machine.num_cores, "quota": machine.cpu_quota}


def _cpuinfo(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _cpu_flags() -> list[str]:
    flags = set(_cpuinfo("flags").split())
    return [flag for flag in SIMD_FLAGS if flag in flags]


def _free_disk(home: Path) -> int:
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    return shutil.disk_usage(existing).free


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _in_words(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name.endswith("_bytes"):
        return size_text(value)
    if name.endswith("_per_second"):
        return f"{value / 1e9:.1f} G{'B' if 'bytes' in name else 'op'}/s"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)
