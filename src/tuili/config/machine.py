"""What this machine gives us: processors and memory, as the kernel and its control groups say. Read from /proc and /sys."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

#: A control group without a limit reports a number near 2**63; anything above this is no limit.
_NO_LIMIT = 2**60


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """``num_cpus``: logical processors this process may use (affinity). ``num_cores``: physical cores among them.
    ``cpu_quota``: processors a control group allows at a time, or None. Memory in bytes; ``memory_limit``: a control group's."""

    num_cpus: int
    num_cores: int
    cpu_quota: float | None
    available_memory: int
    total_memory: int
    memory_limit: int | None


def read_machine(root: Path = Path("/")) -> MachineFacts:
    """The facts of this machine; ``root`` is another place to look for /proc and /sys, for tests."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    memory = _meminfo(root)
    total = memory.get("MemTotal", _sysconf_memory())
    available = memory.get("MemAvailable", total)
    limit, used = _memory_limit(root)
    if limit is not None:
        available = min(available, max(limit - used, 0))
    return MachineFacts(
        num_cpus=len(allowed),
        num_cores=_num_cores(root, allowed),
        cpu_quota=_cpu_quota(root),
        available_memory=available,
        total_memory=total,
        memory_limit=limit,
    )


def cpu_model(root: Path = Path("/")) -> str:
    """What the processor calls itself; the kind of machine where it does not say."""
    lines = (_read(root / "proc/cpuinfo") or "").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def last_level_cache_bytes(root: Path = Path("/")) -> int | None:
    """Bytes of last-level cache that our processors have together; None where the system does not say."""
    sizes: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache/index3"
        size, shared = (_read(folder / "size") or "").strip(), (_read(folder / "shared_cpu_list") or "").strip()
        if size.endswith("K") and size[:-1].isdigit():
            sizes[shared or str(cpu)] = int(size[:-1]) * 1024
    return sum(sizes.values()) or None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _read_number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text and text.strip().lstrip("-").isdigit() else None


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found: dict[str, int] = {}
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields = value.split()
        if fields and fields[0].isdigit():
            found[name] = int(fields[0]) * 1024
    return found


def _sysconf_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _num_cores(root: Path, cpus: list[int]) -> int:
    """Processors that share a core count once; where the topology is not told, each is its own core."""
    cores: set[str] = set()
    for cpu in cpus:
        siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.strip() if siblings else str(cpu))
    return len(cores)


def _group_folders(root: Path, controller: str) -> list[Path]:
    """Folders of our control group and its parents, version 2 and then version 1; limits of parents apply as well."""
    folders: list[Path] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        folders += [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return folders


def _cpu_quota(root: Path) -> float | None:
    quotas: list[float] = []
    for folder in _group_folders(root, "cpu"):
        limit, _, period = (_read(folder / "cpu.max") or "").strip().partition(" ")
        if limit.isdigit() and period.isdigit() and int(period):
            quotas.append(int(limit) / int(period))
        quota, period_us = _read_number(folder / "cpu.cfs_quota_us"), _read_number(folder / "cpu.cfs_period_us")
        if quota and quota > 0 and period_us:
            quotas.append(quota / period_us)
    return min(quotas, default=None)


def _memory_limit(root: Path) -> tuple[int | None, int]:
    """The tightest limit and what is used of it, page cache that can be dropped left out."""
    tightest: tuple[int, int] | None = None
    for folder in _group_folders(root, "memory"):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _read_number(folder / limit_name)
            if limit is None or limit > _NO_LIMIT:
                continue
            used = (_read_number(folder / usage_name) or 0) - _stat(folder / "memory.stat", cache_name)
            if tightest is None or limit - used < tightest[0] - tightest[1]:
                tightest = limit, max(used, 0)
    return tightest if tightest else (None, 0)


def _stat(path: Path, name: str) -> int:
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0
