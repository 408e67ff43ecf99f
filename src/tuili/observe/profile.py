"""Where the time of steps goes, by op: what ``--profile`` and ``LLM.profile`` show."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpTime:
    """One kind of op of a step, summed over layers and steps. ``rows``: tokens or output rows, summed over calls."""

    op: str
    calls: int
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """All steps of one kind. ``seconds`` is the time inside the backend; ``ops`` come in the order in which a step runs them,
    and what they leave of it is the hand-over between them."""

    num_steps: int
    num_tokens: int
    seconds: float
    ops: tuple[OpTime, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """``decode``: steps that computed one token of each sequence; ``prompt``: all others."""

    prompt: StepTimes
    decode: StepTimes

    def __str__(self) -> str:
        """A table for each kind of step that ran."""
        kinds = [(name, times) for name, times in (("prompt", self.prompt), ("decode", self.decode)) if times.num_steps]
        return "\n\n".join(_table(name, times) for name, times in kinds) or "profile: no step ran"


def sum_by_op(times: Iterable[OpTime]) -> tuple[OpTime, ...]:
    """Equal ops of several layers as one, in order of first appearance; those that never ran are left out."""
    sums: dict[str, OpTime] = {}
    for time in times:
        before = sums.get(time.op, OpTime(time.op, 0, 0, 0.0))
        sums[time.op] = OpTime(time.op, before.calls + time.calls, before.rows + time.rows, before.seconds + time.seconds)
    return tuple(time for time in sums.values() if time.calls)


def _table(name: str, times: StepTimes) -> str:
    width = max(len(time.op) for time in times.ops)
    lines = [
        f"{name}: {times.num_steps} steps, {times.num_tokens} tokens, {times.seconds * 1000:.1f} ms in the backend",
        f"  {'op':{width}}  {'calls':>8}  {'ms':>9}  {'share':>6}  {'us/call':>9}  {'tokens':>9}",
    ]
    for time in times.ops:
        share, each = time.seconds / max(times.seconds, 1e-9), time.seconds / time.calls
        lines.append(
            f"  {time.op:{width}}  {time.calls:8}  {time.seconds * 1000:9.1f}  {share:6.1%}  {each * 1e6:9.1f}  {time.rows:9}"
        )
    return "\n".join(lines)
