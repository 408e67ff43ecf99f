"""Results as lines of JSON, and a run compared with an earlier one."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tuili import __version__
from tuili.bench.engine import TrialResult
from tuili.bench.kernels import KernelResult
from tuili.config.machine import MachineFacts, cpu_model
from tuili.errors import ConfigError
from tuili.program.program import NUMERICS_VERSION

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a figure depends on beside the machine's mood. ``model`` and ``digest`` (its file's sha256) are None for kernels."""

    threads: int
    isa: str
    machine: MachineFacts
    model: str | None = None
    digest: str | None = None

    def record(self) -> Record:
        known = {"model": self.model, "digest": self.digest} if self.model else {}
        machine = {
            "cpu": cpu_model(),
            "processors": self.machine.num_cpus,
            "memory_bytes": self.machine.total_memory,
            "system": f"{platform.system()} {platform.release()}",
        }
        versions = {
            "tuili": __version__,
            "numerics": NUMERICS_VERSION,
            "python": platform.python_version(),
            "numpy": np.__version__,
        }
        return {**known, "threads": self.threads, "isa": self.isa, "machine": machine, "versions": versions}


def trial_record(result: TrialResult, setting: Setting) -> Record:
    """One line of ``tuili bench engine --json``."""
    trial = result.trial
    return {
        **{"test": str(trial), "kind": trial.kind, "tokens": trial.tokens, "depth": trial.depth, "batch": trial.batch},
        "tokens_per_second": round(result.rate, 3),
        "deviation": round(result.deviation, 3),
        "samples": [round(rate, 3) for rate in result.rates],
        "part_of_limit": round(result.part_of_limit, 4),
        "limit": result.bound,
        "probe": result.limits.record(),
        **setting.record(),
    }


def kernel_record(result: KernelResult, setting: Setting) -> Record:
    """One line of ``tuili bench kernels --json``."""
    return {
        **{"op": result.op, "format": result.format, "shape": result.shape, "rows": result.rows},
        "microseconds": round(result.seconds * 1e6, 2),
        "operations_per_second": round(result.operations_per_second),
        "bytes_per_second": round(result.bytes_per_second),
        "part_of_limit": round(result.part_of_limit, 4),
        "limit": result.bound,
        "probe": result.limits.record(),
        **setting.record(),
    }


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier run of ``tuili bench engine --json``: its lines by test."""

    records: Mapping[str, Record]

    def ratio(self, test: str, tokens_per_second: float) -> float | None:
        """Now over then; None when the test was not part of that run."""
        record = self.records.get(test)
        return tokens_per_second / record["tokens_per_second"] if record else None

    def differences(self, setting: Setting) -> list[str]:
        """What else is different beside the speed, in words."""
        now, then = setting.record(), next(iter(self.records.values()))
        pairs = [(name, then.get(name), now[name]) for name in ("threads", "isa")]
        pairs += [("cpu", then.get("machine", {}).get("cpu"), now["machine"]["cpu"])]
        pairs += [(name, then.get("versions", {}).get(name), now["versions"][name]) for name in ("tuili", "numerics")]
        return [f"{name} was {before}, is {after}" for name, before, after in pairs if before != after]


def read_earlier(path: Path, digest: str) -> Earlier:
    """Lines that ``tuili bench engine --json`` wrote. Raises ConfigError when they are not that, or are of another model."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the earlier results in {path} cannot be read: {error}") from error
    records: dict[str, Record] = {}
    for number, line in enumerate(lines, 1):
        record = _parse(line, f"{path}, line {number}")
        if record["digest"] != digest:
            raise ConfigError(
                f"{path} has results of another model: {record['model']}, sha256 {record['digest'][:12]}…; "
                f"this one's is {digest[:12]}…"
            )
        records[record["test"]] = record
    if not records:
        raise ConfigError(f"{path} is empty; it has to hold what `tuili bench engine MODEL --json` printed")
    return Earlier(records)


def _parse(line: str, where: str) -> Record:
    try:
        record = json.loads(line)
        if record["tokens_per_second"] > 0 and all(isinstance(record[name], str) for name in ("test", "model", "digest")):
            return record
    except (ValueError, TypeError, KeyError):
        pass
    raise ConfigError(f"{where} is not a result of `tuili bench engine MODEL --json`")
