"""What a backend is, on one page: protocols, and the arrays that one step exchanges.

The engine fills ``StepInput`` and ``SamplingBatch`` and never looks at a tensor; a backend never looks at a request.
``launch`` may return before the step is done; ``collect`` waits. Between the two the caller may fill the next step's arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tuili.observe.profile import Profile
from tuili.observe.progress import LoadProgress, say_nothing
from tuili.program.program import Program
from tuili.weights.source import Weight

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Limits:
    """Capacities an executable is made for. ``num_blocks``: KV blocks of each state group, in the program's group order."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackStore:
    """Where a backend finds the form of the weights that it made at an earlier start. ``folder``: all packs, of all models;
    ``write``: keep what had to be made now; ``max_bytes``: of all packs together.

    ``content`` names the bytes that the weights come from, ``recipe`` how they are made of them: the same texts, the same
    weights."""

    folder: Path
    content: str
    recipe: str
    write: bool
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Loading:
    """How to load, beside what: where packs are (None: nowhere), and whom to tell how far it got."""

    packs: PackStore | None = None
    progress: LoadProgress = say_nothing


PLAIN_LOADING = Loading()


@dataclass(frozen=True, slots=True)
class StepInput:
    """One step: T tokens of S sequences, the tokens of a sequence being contiguous. Views of persistent arrays: what these hold
    changes from step to step, and the same object may be launched again and again.

    A slot is block * 16 + offset. ``block_tables[g][s, i]`` is the block with positions [16 i, 16 i + 16) of sequence s; entries
    that a sliding window has left behind are -1 and are never read.
    """

    token_ids: I32  # [T]
    positions: I32  # [axes, T]
    query_start: I32  # [S + 1]: tokens of sequence s are query_start[s] .. query_start[s + 1]
    context_lens: I32  # [S]: positions known after this step, this step's tokens included
    slot_mapping: Sequence[I32]  # one [T] a state group: where this step's K and V go
    block_tables: Sequence[I32]  # one [S, blocks] a state group, C-contiguous
    logit_rows: I32  # [R]: token rows whose output is wanted, ascending
    adapter_ids: I32  # [S]: 0 = none


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How to sample each of the R output rows. CSR lists: entries of row r are [start[r], start[r + 1]). Arrays may be filled
    anew for the next launch, all but the lists.

    ``target[r]`` >= 0: nothing is sampled; that token's log-probability is reported (prompt logprobs). ``num_logprobs[r]``: -1
    none, else how many alternatives. ``penalty_counts``: occurrences among generated tokens (0: prompt only); each id once a row.
    ``seed, sequence, position`` key the noise, position being the index of the output token.
    An empty ``allowed`` list means every token; bias -inf bans. ``masks``: a bit for each token that a grammar lets come next,
    the lowest bit first; what lies beyond their end is banned.
    """

    temperature: F32  # [R]; 0 = greedy
    top_k: I32  # [R]; 0 = off
    top_p: F32
    min_p: F32
    repetition_penalty: F32
    presence_penalty: F32
    frequency_penalty: F32
    seed: U64
    sequence: I32
    position: I32
    num_logprobs: I32
    target: I32
    bias_start: I32  # [R + 1]
    bias_ids: I32
    bias_values: F32
    penalty_start: I32  # [R + 1]
    penalty_ids: I32
    penalty_counts: I32
    allowed_start: I32  # [R + 1]
    allowed_ids: I32
    mask_index: I32  # [R]: the row's mask; -1 = none
    masks: U32  # [num masks, words]


@dataclass(slots=True)
class StepResult:
    """One entry per output row. ``token_ids`` is ``target`` where one was given. ``top_*`` [R, max num_logprobs], best first,
    padded with -1. ``logprobs`` is filled for rows with num_logprobs >= 0 and 0 elsewhere. Log-probabilities are log_softmax
    of the raw logits, natural log."""

    token_ids: I32  # [R]
    logprobs: F32  # [R]
    top_ids: I32
    top_logprobs: F32


class Executable(Protocol):
    """A program bound to weights and KV memory."""

    @property
    def description(self) -> Mapping[str, str]:
        """For the start report: backend, ISA, kernels, threads, memory."""
        ...

    def launch(self, step: StepInput, sampling: SamplingBatch) -> Any:
        """Start one step; returns a handle for collect. At most one step is in flight."""
        ...

    def collect(self, handle: Any) -> StepResult:
        """Wait for it. The result is valid until the next launch."""
        ...

    def run(self, step: StepInput) -> F32:
        """One step without sampling: the output rows [R, vocab or width]. For tests, evaluation and embeddings."""
        ...

    def read_blocks(self, group: int, blocks: I32) -> npt.NDArray[np.uint8]:
        """Bytes [num, bytes of a block over the group's layers]: the only way KV leaves the pool ..."""
        ...

    def write_blocks(self, group: int, blocks: I32, data: npt.NDArray[np.uint8]) -> None:
        """... and comes back."""
        ...

    def profile(self) -> Profile | None:
        """Times of the steps so far, where the backend was made to keep them; readable after ``close`` too."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """Makes executables."""

    name: str

    def missing(self, program: Program, formats: Mapping[str, str]) -> list[str]:
        """What of the program this backend cannot run, in words; ``formats``: weight name -> format name."""
        ...

    def kv_bytes_per_block(self, program: Program) -> tuple[int, ...]:
        """Bytes one block takes in each state group, over all its layers."""
        ...

    def load(
        self, program: Program, weights: Mapping[str, Weight], limits: Limits, loading: Loading = PLAIN_LOADING
    ) -> Executable:
        """Bind and pack; raises BackendError naming everything that is missing."""
        ...
