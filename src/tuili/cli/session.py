"""A conversation with a loaded model: what was said, the next prompt, the answer as it comes."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tuili.engine.build import LoadedEngine
from tuili.errors import BackendError
from tuili.types import FinishReason, GenerateRequest, SamplingParams, Usage

T = TypeVar("T")

#: A base model has no notion of an answer's end: without a limit it would write until its context is full.
RAW_MAX_TOKENS = 256


@dataclass(slots=True)
class Answer:
    """What came of one prompt. Times in seconds: ``first`` from submission to the first token, ``rest`` from there to the end."""

    seed: int
    text: str = ""
    usage: Usage = field(default_factory=lambda: Usage(0, 0))
    finish_reason: FinishReason | None = None
    first: float = 0.0
    rest: float = 0.0

    def report(self) -> str:
        """Speeds, for --verbose."""
        prompt = self.usage.prompt_tokens
        cached = f" ({self.usage.cached_tokens} from the cache)" if self.usage.cached_tokens else ""
        lines = [f"prompt     {prompt} tokens{cached}, {_rate(prompt - self.usage.cached_tokens, self.first)}"]
        lines.append(f"generated  {self.usage.completion_tokens} tokens, {_rate(self.usage.completion_tokens - 1, self.rest)}")
        lines.append(f"finished   {self.finish_reason}, seed {self.seed}")
        return "\n".join(lines)


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s ({seconds:.2f} s)" if tokens > 0 and seconds > 0 else f"{seconds:.2f} s"


class Session:
    """One model and one event loop. Use it as a context manager: leaving it stops the engine.

    ``raw``: prompts go to the model as they are, without the chat template.
    """

    def __init__(self, loaded: LoadedEngine, params: SamplingParams, *, system: str | None = None, raw: bool = False) -> None:
        self.loaded = loaded
        self.raw = raw
        self.params = replace(params, max_tokens=RAW_MAX_TOKENS) if raw and params.max_tokens is None else params
        self.system = system
        self.messages: list[dict[str, Any]] = []
        self.clear()
        self._runner = asyncio.Runner()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.loaded.close()
        self._runner.close()

    def clear(self) -> None:
        """Forget what was said; the system prompt stays."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str, write: Callable[[str], None]) -> Answer:
        """Answer ``text``, in turn after what was said before; ``write`` gets the answer piece by piece.

        Raises TuiliError, and KeyboardInterrupt after Ctrl-C; the conversation then keeps what was written, and stays usable.
        """
        answer = Answer(self._seed())
        if self.raw:
            self._run(self._generate(self.loaded.tokenizer.encode(text), answer, write))
            return answer
        self.messages.append({"role": "user", "content": text})
        try:
            self._run(self._generate(self._chat_prompt(), answer, write))
        finally:
            if answer.text:
                self.messages.append({"role": "assistant", "content": answer.text})
            else:
                self.messages.pop()
        return answer

    def _chat_prompt(self) -> list[int]:
        assert self.loaded.chat_template is not None
        segments = self.loaded.chat_template.render(self.messages, add_generation_prompt=True)
        return self.loaded.tokenizer.encode_segments(segments)

    async def _generate(self, prompt: list[int], answer: Answer, write: Callable[[str], None]) -> None:
        params = replace(self.params, seed=answer.seed)
        started = time.monotonic()
        stream = self.loaded.client.submit(GenerateRequest(os.urandom(8).hex(), tuple(prompt), params))
        try:
            async for output in stream:
                now = time.monotonic()
                if output.error is not None:
                    raise BackendError(f"generation failed: {output.error}")
                if not answer.first:
                    answer.first = now - started
                answer.rest = now - started - answer.first
                answer.usage = output.usage
                for delta in output.deltas:
                    answer.finish_reason = delta.finish_reason or answer.finish_reason
                    if delta.text:
                        answer.text += delta.text
                        write(delta.text)
        finally:
            await stream.aclose()

    def _seed(self) -> int:
        return self.params.seed if self.params.seed is not None else int.from_bytes(os.urandom(4))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)
