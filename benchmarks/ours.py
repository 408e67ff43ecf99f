"""Tuili in this process, timed from outside: scheduler, sampler, detokeniser and Python are in every figure."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuili import LLM, SamplingParams
from tuili.engine.llm import run_offline
from tuili.types import GenerateRequest


@dataclass(frozen=True)
class Generated:
    """``chosen``: token ids of each prompt's answer. ``events``: (seconds since the start, prompt, tokens) as they came.
    ``seconds``: until everything had ended."""

    chosen: tuple[tuple[int, ...], ...]
    events: tuple[tuple[float, int, int], ...]
    seconds: float

    @property
    def first_token(self) -> float:
        """Seconds until the last of the prompts had its first token."""
        return max(next(at for at, who, _ in self.events if who == prompt) for prompt in range(len(self.chosen)))

    @property
    def decode_rate(self) -> float:
        """Tokens a second while every sequence decoded: after the last first token, until the first prompt's answer, which
        started first, had ended."""
        start = self.first_token
        steps = [at for at, who, _ in self.events if who == 0 and at > start]
        return len(self.chosen) * len(steps) / (steps[-1] - start)


class Ours:
    """A loaded model. Use as a context manager. ``options``: fields of EngineOptions. Passes repeat the same prompts, so nothing
    may be left of the pass before: no prefix cache."""

    def __init__(self, path: Path, **options: Any) -> None:
        self._llm = LLM(path, enable_prefix_caching=False, **options)
        self._numbers = itertools.count()

    def __enter__(self) -> "Ours":
        return self

    def __exit__(self, *_: object) -> None:
        self._llm.close()

    @property
    def report(self) -> dict[str, str]:
        return dict(self._llm.loaded.report)

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Generated:
        """Greedy, to exactly ``max_tokens`` tokens for each prompt."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        first = next(self._numbers)
        requests = [
            GenerateRequest(f"{first} {i}", tuple(ids), params, arrival=time.monotonic()) for i, ids in enumerate(prompts)
        ]
        position = {request.request_id: i for i, request in enumerate(requests)}
        chosen: list[list[int]] = [[] for _ in requests]
        events: list[tuple[float, int, int]] = []
        start = time.perf_counter()
        for output in run_offline(self._llm.loaded, requests):
            who = position[output.request_id]
            ids = [token for delta in output.deltas for token in delta.token_ids]
            chosen[who] += ids
            events.append((time.perf_counter() - start, who, len(ids)))
        seconds = time.perf_counter() - start
        assert all(len(ids) == max_tokens for ids in chosen), [len(ids) for ids in chosen]
        return Generated(tuple(map(tuple, chosen)), tuple(events), seconds)
