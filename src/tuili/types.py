"""Plain data that several packages exchange. Nothing here computes; nothing here knows numpy."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from tuili.errors import InvalidRequest

FinishReason = Literal["stop", "length", "abort", "error"]

MAX_LOGPROBS = 20


def _check(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise InvalidRequest(f"{name} is {value!r}; it has to be {allowed}", field=name)


GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What the output has to match. ``text``: the JSON schema, the regular expression, a JSON array of choices, or a Lark or GBNF
    grammar; empty for any JSON object."""

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """The form the output has to have: exactly one of the fields, named as in vLLM. ``json``: a schema, as a mapping or as text.

    Raises InvalidRequest for none, several, or one of the wrong kind. Whether a schema, pattern or grammar can be used is known
    when it is compiled.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        given = [
            name for name in _CONSTRAINTS if getattr(self, name) not in (None, False) or (name == "json" and self.json is False)
        ]
        if len(given) != 1:
            sent = " and ".join(given) or "nothing"
            raise InvalidRequest(f"give exactly one of {', '.join(_CONSTRAINTS)}, not {sent}", field="structured_outputs")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            _check(value is None or isinstance(value, str), name, value, "text")
        _check(self.json is None or isinstance(self.json, str | Mapping | bool), "json", self.json, "a JSON schema: an object")
        _check(self.json_object in (None, False, True), "json_object", self.json_object, "true, or left out")
        choice = self.choice
        _check(
            choice is None or (not isinstance(choice, str) and len(choice) > 0 and all(isinstance(c, str) and c for c in choice)),
            "choice",
            choice,
            "a list of one or more non-empty strings",
        )

    @property
    def spec(self) -> GrammarSpec:
        if self.json is not None:
            return GrammarSpec("json_schema", self.json if isinstance(self.json, str) else json.dumps(self.json))
        if self.regex is not None:
            return GrammarSpec("regex", self.regex)
        if self.choice is not None:
            return GrammarSpec("choice", json.dumps(list(self.choice), ensure_ascii=False))
        return GrammarSpec("json_object") if self.grammar is None else GrammarSpec("grammar", self.grammar)


_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop. Names follow vLLM's and OpenAI's.

    ``temperature`` 0 is greedy; ``top_k`` 0 or -1, ``top_p`` 1 and ``min_p`` 0 switch those filters off.
    ``presence_penalty`` and ``frequency_penalty`` look at generated tokens, ``repetition_penalty`` at prompt and generated ones.
    ``logprobs`` and ``prompt_logprobs`` ask for that many alternatives beside the token itself (0: the token alone).
    Log-probabilities are those of the model: before temperature, penalties and filters.
    ``structured_outputs``: what the text has to match. Tokens that it leaves no choice about are put without asking the model,
    unless ``logprobs`` wants to know what the model thinks of them.

    Raises InvalidRequest, naming the field, for a value out of range. Token ids are checked against the vocabulary on submission.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    allowed_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        _check_numbers(self)
        _check(1 <= self.n <= 128, "n", self.n, "from 1 to 128")
        _check(0 <= self.temperature <= 100, "temperature", self.temperature, "from 0 to 100")
        _check(0 <= self.top_p <= 1, "top_p", self.top_p, "from 0 to 1 (0 means greedy)")
        _check(self.top_k >= -1, "top_k", self.top_k, "-1 or 0 (off), or positive")
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1")
        _check(
            0 < self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "above 0, at most 100",
        )
        _check(-2 <= self.presence_penalty <= 2, "presence_penalty", self.presence_penalty, "from -2 to 2")
        _check(-2 <= self.frequency_penalty <= 2, "frequency_penalty", self.frequency_penalty, "from -2 to 2")
        _check(self.max_tokens is None or self.max_tokens >= 0, "max_tokens", self.max_tokens, "0 or more")
        _check(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 or more")
        if self.max_tokens is not None:
            _check(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                self.min_tokens,
                f"at most max_tokens ({self.max_tokens})",
            )
        _check(self.seed is None or -(2**63) <= self.seed < 2**64, "seed", self.seed, "a 64-bit integer")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _check(value is None or 0 <= value <= MAX_LOGPROBS, name, value, f"from 0 to {MAX_LOGPROBS}")
        _check(all(self.stop), "stop", self.stop, "non-empty strings; leave it out for none")
        for token_id, bias in self.logit_bias.items():
            _check(-100 <= bias <= 100, "logit_bias", {token_id: bias}, "from -100 to 100 for each token")
        _check(
            self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
            "allowed_token_ids",
            (),
            "left out, or at least one id",
        )


def _check_numbers(params: SamplingParams) -> None:
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        _check(isinstance(value, Real) and math.isfinite(value), name, value, "a finite number")
    for name in ("n", "top_k", "min_tokens"):
        value = getattr(params, name)
        _check(isinstance(value, Integral), name, value, "a whole number")
    for name in ("max_tokens", "seed", "logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        _check(value is None or isinstance(value, Integral), name, value, "a whole number, or left out")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What the user asked, in the engine's terms. ``params.n`` sequences grow from one prompt.

    ``priority``: lower numbers are served first, as in vLLM. ``arrival`` is time.monotonic() at the edge. ``tenant`` and
    ``cache_salt``: only requests that have both alike find each other's tokens in the prefix cache.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    arrival: float = 0.0
    tenant: str | None = None
    cache_salt: str | None = None


# The classes below are made once a token. They are not declared frozen, which would make them four times as dear to make, and
# nobody changes them: events are values.


@dataclass(slots=True, unsafe_hash=True)
class TokenLogprob:
    """Log-probability (natural log) of one token, and of the likeliest alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class SequenceDelta:
    """What one sequence of a request gained since the last output. The last delta carries ``finish_reason``.

    ``stop_reason`` is the stop string or stop token id that ended it, None for end-of-sequence.
    ``text`` may be empty while ``token_ids`` is not: a character or a stop string is being held back.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True, unsafe_hash=True)
class Usage:
    """Token counts of a request so far; ``cached_tokens`` of the prompt came from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(slots=True, unsafe_hash=True)
class RequestOutput:
    """One event of a request's stream. ``prompt_logprobs`` comes once, with the first event, when it was asked for;
    its first entry is None, since nothing precedes the first prompt token. ``finished`` is true once, at the end.
    ``error`` goes with finish_reason "error".
    """

    request_id: str
    deltas: tuple[SequenceDelta, ...]
    usage: Usage
    finished: bool = False
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error: str | None = None
