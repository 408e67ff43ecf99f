"""A backend without a model: deterministic tokens, real KV bookkeeping, real sampling. For tests of everything above.

Its "KV cache" stores the token and position of every slot. An output row reads back, through the block tables, all that its
query can see, so a wrong table, slot or window is an error here rather than a subtly wrong text; and its logits are a hash of
what was read, so that the same tokens give the same logits whatever the batch, the chunks or the preemptions.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tuili.backends.base import F32, I32, PLAIN_LOADING, Limits, Loading, SamplingBatch, StepInput, StepResult
from tuili.backends.reference.sampler import sample
from tuili.errors import BackendError
from tuili.observe.profile import Profile
from tuili.program.program import BLOCK_SIZE, Program, StateGroup
from tuili.weights.source import Weight

U64 = npt.NDArray[np.uint64]


def _mix(value: U64) -> U64:
    """The step and finaliser of splitmix64 (Steele, Lea, Flood 2014) on whole arrays; uint64 arithmetic wraps."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


#: Added to the logit of a scripted token: far above the noise, yet open to bias and bans.
SCRIPT_LOGIT = 50.0


@dataclass(slots=True)
class FakeBackend:
    """``script``: token ids; output token i of every sequence is script[i], if nothing bans it, and hash noise beyond its end.
    ``seconds_per_step``: how long a step sleeps, without the GIL. ``failing_token``: a step that holds it raises BackendError.
    ``failing_steps``: so do the steps of these numbers, counted from 0. ``nan_token``: its output row is NaN.
    """

    script: tuple[int, ...] = ()
    seconds_per_step: float = 0.0
    failing_token: int | None = None
    failing_steps: frozenset[int] = frozenset()
    nan_token: int | None = None
    name: str = "fake"

    def missing(self, program: Program, formats: Mapping[str, str]) -> list[str]:
        return []

    def kv_bytes_per_block(self, program: Program) -> tuple[int, ...]:
        return tuple(len(g.states) * 2 * BLOCK_SIZE * g.num_kv_heads * g.head_dim * 2 for g in program.state_groups())

    def load(
        self, program: Program, weights: Mapping[str, Weight], limits: Limits, loading: Loading = PLAIN_LOADING
    ) -> "FakeExecutable":
        return FakeExecutable(self, program, limits)


class _Cache:
    """Tokens and positions of one state group, by slot."""

    def __init__(self, group: StateGroup, num_blocks: int) -> None:
        self._window = group.window
        self._stored = np.full((num_blocks, BLOCK_SIZE, 2), -1, np.int32)

    def write(self, slots: I32, token_ids: I32, positions: I32) -> None:
        flat = self._stored.reshape(-1, 2)
        flat[slots, 0] = token_ids
        flat[slots, 1] = positions

    def digest(self, table: I32, position: int) -> int:
        """A hash of all that a query at ``position`` sees; raises BackendError when the tables lead astray."""
        first = 0 if self._window is None else max(position - self._window + 1, 0)
        first_block = first // BLOCK_SIZE
        blocks = table[first_block : position // BLOCK_SIZE + 1]
        if (blocks < 0).any():
            raise BackendError(f"a block that position {position} needs is not in its table")
        seen = self._stored[blocks].reshape(-1, 2)[first - first_block * BLOCK_SIZE : position - first_block * BLOCK_SIZE + 1]
        if not np.array_equal(seen[:, 1], np.arange(first, position + 1)):
            raise BackendError(f"the cache does not hold positions {first} to {position} where the table says")
        keys = (seen[:, 0].astype(np.uint64) << np.uint64(32)) | seen[:, 1].astype(np.uint64)
        return int(_mix(keys).sum(dtype=np.uint64))

    def read(self, blocks: I32) -> npt.NDArray[np.uint8]:
        return self._stored[blocks].reshape(len(blocks), -1).view(np.uint8)

    def write_back(self, blocks: I32, data: npt.NDArray[np.uint8]) -> None:
        self._stored[blocks] = np.ascontiguousarray(data).view(np.int32).reshape(len(blocks), BLOCK_SIZE, 2)


class FakeExecutable:
    def __init__(self, backend: FakeBackend, program: Program, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits
        self._vocab_size = program.output.width
        self._token_keys = _mix(np.arange(self._vocab_size, dtype=np.uint64))
        self._caches = [_Cache(g, n) for g, n in zip(program.state_groups(), limits.num_blocks, strict=True)]
        self.num_steps = 0

    @property
    def description(self) -> Mapping[str, str]:
        return {"backend": "fake", "kernels": "none: tokens are made up"}

    def launch(self, step: StepInput, sampling: SamplingBatch) -> StepResult:
        logits = self.run(step)
        for row in range(len(logits)):
            position = int(sampling.position[row])
            if sampling.target[row] < 0 and position < len(self._backend.script):
                logits[row, self._backend.script[position]] += SCRIPT_LOGIT
        return sample(logits, sampling)

    def collect(self, handle: Any) -> StepResult:
        assert isinstance(handle, StepResult)
        return handle

    def run(self, step: StepInput) -> F32:
        number, self.num_steps = self.num_steps, self.num_steps + 1
        if self._backend.seconds_per_step:
            time.sleep(self._backend.seconds_per_step)
        if number in self._backend.failing_steps:
            raise BackendError(f"step {number} was told to fail")
        if self._backend.failing_token is not None and (step.token_ids == self._backend.failing_token).any():
            raise BackendError(f"token {self._backend.failing_token} was told to fail")
        assert len(step.token_ids) <= self._limits.max_num_batched_tokens
        assert len(step.context_lens) <= self._limits.max_num_seqs
        for cache, slots in zip(self._caches, step.slot_mapping, strict=True):
            cache.write(slots, step.token_ids, step.positions[0])
        owners = np.searchsorted(step.query_start, step.logit_rows, side="right") - 1
        logits = np.empty((len(step.logit_rows), self._vocab_size), np.float32)
        for i, (sequence, row) in enumerate(zip(owners.tolist(), step.logit_rows.tolist(), strict=True)):
            logits[i] = self._logits(step, sequence, row)
        return logits

    def read_blocks(self, group: int, blocks: I32) -> npt.NDArray[np.uint8]:
        return self._caches[group].read(blocks)

    def write_blocks(self, group: int, blocks: I32, data: npt.NDArray[np.uint8]) -> None:
        self._caches[group].write_back(blocks, data)

    def profile(self) -> Profile | None:
        return None

    def close(self) -> None:
        self._caches.clear()

    def _logits(self, step: StepInput, sequence: int, row: int) -> F32:
        """Numbers in [-4, 4) that depend on the visible tokens alone."""
        if step.token_ids[row] == self._backend.nan_token:
            return np.full(self._vocab_size, np.nan, np.float32)
        position = int(step.positions[0, row])
        digest = 0
        for cache, tables in zip(self._caches, step.block_tables, strict=True):
            digest = digest * 31 + cache.digest(tables[sequence], position)
        bits = _mix(self._token_keys ^ np.uint64(digest % 2**64)) >> np.uint64(40)
        return bits.astype(np.float32) * np.float32(8 / 2**24) - np.float32(4)
