"""What both kinds of reply share: the header of every object, one growing choice, and the interface that the server drives.

A reply is fed the engine's events in order through ``push``. For a stream the server sends ``opening()``, then ``news()`` after
one or several events (a slow reader gets fewer and longer chunks), then ``closing()``; otherwise it sends ``whole()`` at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from tuili.types import RequestOutput, SequenceDelta, TokenLogprob


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """``created`` is Unix time in seconds; ``fingerprint`` changes when the numbers that the backend computes may change."""

    id: str
    created: int
    model: str
    fingerprint: str


class Reply(Protocol):
    def opening(self) -> Sequence[Struct]: ...
    def push(self, prompt_index: int, output: RequestOutput) -> None: ...
    def news(self) -> Sequence[Struct]: ...
    def closing(self) -> Sequence[Struct]: ...
    def whole(self) -> Struct: ...


@dataclass(slots=True)
class Choice:
    """One sequence as far as it has come. ``text`` and ``logprobs`` hold what was not yet handed on: a stream hands on early."""

    index: int
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    closed: bool = False

    def push(self, delta: SequenceDelta) -> None:
        self.text += delta.text
        if delta.logprobs:
            self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason

    @property
    def has_news(self) -> bool:
        """Log-probabilities of held-back text wait for that text, so that no chunk is empty but the last."""
        return not self.closed and (self.text != "" or self.finish_reason is not None)

    def take(self) -> tuple[str, list[TokenLogprob]]:
        """Hands on the text and log-probabilities so far; with a finish reason, for the last time."""
        taken = self.text, self.logprobs
        self.text, self.logprobs = "", []
        self.closed = self.finish_reason is not None
        return taken


TokenBytes = Callable[[int], bytes]
