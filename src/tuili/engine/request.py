"""A request and its sequences, as the scheduler sees them: integers and a status.

``num_computed_tokens`` is the single truth about progress: tokens before it are in the KV cache. A sequence whose known tokens
are all computed but the last gets one token a step ("decode"); any other is catching up ("prefill"), be it with its prompt or,
after a preemption, with tokens that it generated itself. Nothing else tells the two apart.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tuili.cache.manager import SequenceBlocks
from tuili.engine.speculate import Drafter
from tuili.text.grammar.compiler import Grammar
from tuili.text.grammar.state import GrammarState
from tuili.types import FinishReason, GenerateRequest


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class RawLogprob(NamedTuple):
    """Log-probability of a token and of its alternatives, as a step returned them (padding included: id -1)."""

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(slots=True, eq=False)
class Sequence:
    """One continuation of a request's prompt.

    ``max_tokens_total``: prompt and output end here. ``slot``: its row in the persistent arrays while it runs. ``drafter``:
    guesses its next tokens, once somebody has asked for that. ``grammar``: where its output stands in what it has to match.
    """

    request: "Request"
    index: int
    token_ids: list[int]
    max_tokens_total: int
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    blocks: SequenceBlocks | None = None
    slot: int = -1
    num_preemptions: int = 0
    drafter: Drafter | None = None
    grammar: GrammarState | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def prompt_rows_pending(self) -> bool:
        """Only the first sequence of a request collects prompt log-probabilities."""
        return self.index == 0 and self.request.num_missing_prompt_logprobs > 0

    @property
    def key(self) -> tuple[float, int, int]:
        """Place in every queue: lower is served first and preempted last."""
        return (*self.request.key, self.index)


@dataclass(slots=True, eq=False)
class Request:
    """What the engine keeps of a GenerateRequest.

    ``seed`` is always a number here; ``stop_token_ids`` are the end-of-sequence ids (unless ignored) and the user's.
    ``prompt_logprobs`` grows by one entry a prompt token (the first is None), each exactly once, whatever is recomputed.
    ``namespace``: with whom it shares the prefix cache. ``num_cached_tokens``: of the prompt, found there at the first start.
    """

    source: GenerateRequest
    seed: int
    stop_token_ids: frozenset[int]
    max_tokens_total: int
    key: tuple[float, int] = (0.0, 0)
    sequences: list[Sequence] = field(default_factory=list[Sequence])
    num_unfinished: int = 0
    first_scheduled: float | None = None
    prompt_logprobs: list[tuple[int, RawLogprob] | None] | None = None
    grammar: Grammar | None = None
    namespace: bytes = b""
    num_cached_tokens: int = 0

    def __post_init__(self) -> None:
        params = self.source.params
        prompt = self.source.prompt_token_ids
        self.sequences = [Sequence(self, index, list(prompt), self.max_tokens_total) for index in range(params.n)]
        self.num_unfinished = params.n
        if self.grammar is not None:
            for sequence in self.sequences:
                sequence.grammar = self.grammar.start()
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    @property
    def request_id(self) -> str:
        return self.source.request_id

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return self.source.prompt_token_ids

    @property
    def draws_depend_on_output(self) -> bool:
        """Whether what was generated changes how the next token is chosen: then tokens cannot be drawn ahead of each other."""
        params = self.source.params
        penalised = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        return penalised or params.min_tokens > 0

    def note_cached(self, sequence: Sequence, num_tokens: int) -> None:
        """A sequence starts with ``num_tokens`` that need not be computed. Only the first start of a request counts as a hit:
        later ones find what the request itself has left."""
        if self.first_scheduled is None and sequence.index == 0:
            self.num_cached_tokens = num_tokens

    @property
    def num_missing_prompt_logprobs(self) -> int:
        """Prompt tokens whose log-probability is wanted and not known yet."""
        return 0 if self.prompt_logprobs is None else len(self.source.prompt_token_ids) - len(self.prompt_logprobs)

    def prompt_rows(self, start: int, end: int) -> range:
        """Positions in [start, end) whose output row gives a missing prompt log-probability: that of the next prompt token."""
        if self.prompt_logprobs is None:
            return range(0)
        return range(max(start, len(self.prompt_logprobs) - 1), min(end, len(self.source.prompt_token_ids) - 1))


@dataclass(slots=True)
class StepPlan:
    """What one step computes: ``num_tokens[i]`` tokens of ``sequences[i]`` from its ``num_computed_tokens`` on. ``admitted``:
    sequences that have just got a slot. ``drafts``: by place in the plan, guesses at the tokens behind the last known one, which
    are among the ``num_tokens``."""

    sequences: list[Sequence] = field(default_factory=list[Sequence])
    num_tokens: list[int] = field(default_factory=list[int])
    admitted: list[Sequence] = field(default_factory=list[Sequence])
    drafts: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def __bool__(self) -> bool:
        return bool(self.sequences)


class SequenceEvent(NamedTuple):
    """What a step gave one sequence; plain data for the output side. ``token_id`` is -1 when it only ended."""

    request_id: str
    sequence: int
    token_id: int
    logprob: RawLogprob | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None


class PromptLogprobs(NamedTuple):
    """All prompt log-probabilities of a request: None for the first token, then (token id, log-probability)."""

    request_id: str
    entries: Seq[tuple[int, RawLogprob] | None]


class Started(NamedTuple):
    """A request was scheduled for the first time, at ``at`` (time.monotonic()), with part of its prompt in the prefix cache."""

    request_id: str
    at: float
    num_cached_tokens: int


@dataclass(slots=True)
class StepOutputs:
    """Everything one step has for the output side, in order. ``now``: time.monotonic() when the step ended."""

    now: float = 0.0
    events: list[SequenceEvent] = field(default_factory=list[SequenceEvent])
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list[PromptLogprobs])
    started: list[Started] = field(default_factory=list[Started])

    def __bool__(self) -> bool:
        return bool(self.events or self.prompt_logprobs or self.started)
