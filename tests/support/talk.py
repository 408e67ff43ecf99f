"""A loaded model that answers by script, for tests of the command line: what was asked of it is remembered."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tuili.errors import TuiliError
from tuili.types import GenerateRequest, RequestOutput, SequenceDelta, Usage


@dataclass
class ScriptedClient:
    """Each request is answered by the next entry: pieces of text, or an error to raise. "^C" raises KeyboardInterrupt."""

    answers: list[Sequence[str] | TuiliError]
    requests: list[GenerateRequest] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    error: str | None = None

    def submit(self, request: GenerateRequest) -> AsyncIterator[RequestOutput]:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, TuiliError):
            raise answer
        return self._stream(request, answer)

    async def _stream(self, request: GenerateRequest, pieces: Sequence[str]) -> AsyncIterator[RequestOutput]:
        prompt = len(request.prompt_token_ids)
        try:
            for number, piece in enumerate(pieces, 1):
                await asyncio.sleep(0)
                if piece == "^C":
                    raise KeyboardInterrupt
                last = number == len(pieces)
                delta = SequenceDelta(0, piece, (number,), finish_reason="stop" if last else None)
                yield RequestOutput(request.request_id, (delta,), Usage(prompt, number), finished=last, error=self.error)
        finally:
            self.closed.append(request.request_id)


class Words:
    """Counts words where a tokenizer would count tokens."""

    chat_templates: Mapping[str, str] = {}

    def encode(self, text: str) -> list[int]:
        return [hash(word) & 0xFFFF for word in text.split()]

    def encode_segments(self, segments: Sequence[tuple[str, bool]]) -> list[int]:
        return self.encode(" ".join(text for text, _ in segments))


@dataclass
class RememberingTemplate:
    conversations: list[list[Mapping[str, Any]]] = field(default_factory=list)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> list[tuple[str, bool]]:
        assert add_generation_prompt
        self.conversations.append([dict(message) for message in messages])
        return [(f"{message['role']} {message['content']}", True) for message in messages]


def loaded(*answers: Sequence[str] | TuiliError, chat: bool = True) -> Any:
    """Something that looks like a LoadedEngine, as far as the command line looks."""
    closed: list[bool] = []
    return SimpleNamespace(
        client=ScriptedClient(list(answers)),
        tokenizer=Words(),
        chat_template=RememberingTemplate() if chat else None,
        report={"weights": "packed by nobody"},
        chat_template_error=None if chat else "none",
        resolved=SimpleNamespace(max_model_len=64),
        closed=closed,
        close=lambda: closed.append(True),
    )
