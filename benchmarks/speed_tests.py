"""The passes of compare_llama_cpp: each runs one side once and gives its rates. Ours runs first; theirs replays ours' tokens."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from material import random_ids
from ours import Ours
from pairs import Rates
from peers.llama_cpp import Peer
from tuili.text.tokenizer.base import Tokenizer

#: The peer's settings: with and without flash attention.
FLASH = {"fa=0": False, "fa=1": True}


class Alone:
    """One sequence: a prompt, and tokens from an empty context. ``ppN`` and ``tgN`` in tokens a second."""

    def __init__(self, ours: Ours, peer: Peer, tokenizer: Tokenizer, prompt: int, generate: int) -> None:
        self._ours, self._peer, self._tokenizer = ours, peer, tokenizer
        self._prompt, self._generate = prompt, generate
        self._fed: list[int] = []

    def ours(self, number: int) -> Rates:
        ids = random_ids(self._tokenizer, self._prompt, number)
        prompt_seconds = self._ours.generate([ids], 1).seconds
        generated = self._ours.generate([ids[:1]], self._generate)
        self._fed = [ids[0], *generated.chosen[0][:-1]]
        return self._rates(prompt_seconds, generated.seconds)

    def theirs(self, number: int, setting: str) -> Rates:
        ids = random_ids(self._tokenizer, self._prompt, number)
        prompt_seconds, _ = self._peer.run(ids, len(ids), flash=FLASH[setting])
        _, seconds = self._peer.run(self._fed, 0, flash=FLASH[setting])
        return self._rates(prompt_seconds, seconds)

    def _rates(self, prompt_seconds: float, seconds: float) -> Rates:
        return {f"pp{self._prompt}": self._prompt / prompt_seconds, f"tg{self._generate}": self._generate / seconds}


class Deep:
    """One sequence: a long prompt, and tokens after it. ``ppN`` and ``tgM@dN``."""

    def __init__(self, ours: Ours, peer: Peer, tokenizer: Tokenizer, prompt: int, generate: int) -> None:
        self._ours, self._peer, self._tokenizer = ours, peer, tokenizer
        self._prompt, self._generate = prompt, generate
        self._fed: list[int] = []

    def ours(self, number: int) -> Rates:
        ids = random_ids(self._tokenizer, self._prompt, number)
        generated = self._ours.generate([ids], self._generate + 1)  # the first token belongs to the prompt
        self._fed = [*ids, *generated.chosen[0][:-1]]
        return self._rates(generated.first_token, generated.events[-1][0] - generated.first_token)

    def theirs(self, number: int, setting: str) -> Rates:
        return self._rates(*self._peer.run(self._fed, self._prompt, flash=FLASH[setting]))

    def _rates(self, prompt_seconds: float, seconds: float) -> Rates:
        figures = {f"pp{self._prompt}": self._prompt / prompt_seconds}
        return {**figures, f"tg{self._generate}@d{self._prompt}": self._generate / seconds}


class Batch:
    """``size`` sequences that decode together, from prompts of equal length, which are the same in every pass: the peer keeps
    them in its cache. ``batchN`` in tokens a second of all sequences."""

    def __init__(self, ours: Ours, peer: Peer, tokenizer: Tokenizer, size: int, prompt: int, generate: int) -> None:
        self._ours, self._peer = ours, peer
        self._prompts = [random_ids(tokenizer, prompt, seed) for seed in range(size)]
        self._generate = generate
        self._fed: list[tuple[int, ...]] = []

    def ours(self, number: int) -> Rates:
        generated = self._ours.generate(self._prompts, self._generate)
        self._fed = list(zip(*generated.chosen, strict=True))
        return {self.figure: generated.decode_rate}

    def theirs(self, number: int, setting: str) -> Rates:
        _, seconds = self._peer.batch(self._prompts, self._fed, flash=FLASH[setting])
        return {self.figure: len(self._prompts) * self._generate / seconds}

    @property
    def figure(self) -> str:
        return f"batch{len(self._prompts)}"


class Neighbour:
    """``Alone`` twice: on a quiet machine, and while another process burns one of the cores. For each figure, the rate under the
    neighbour ("... neighbour") and the part of the quiet rate that is left ("... kept")."""

    def __init__(self, alone: Alone) -> None:
        self._alone = alone

    def ours(self, number: int) -> Rates:
        quiet = self._alone.ours(number)
        with burnt_core():
            return self._both(quiet, self._alone.ours(number))

    def theirs(self, number: int, setting: str) -> Rates:
        quiet = self._alone.theirs(number, setting)
        with burnt_core():
            return self._both(quiet, self._alone.theirs(number, setting))

    @staticmethod
    def _both(quiet: Rates, burnt: Rates) -> Rates:
        rates = {f"{figure} neighbour": burnt[figure] for figure in quiet}
        return {**rates, **{f"{figure} kept": burnt[figure] / quiet[figure] for figure in quiet}}


@contextlib.contextmanager
def burnt_core() -> Iterator[None]:
    """Another process keeps the last of our cores busy."""
    core = max(os.sched_getaffinity(0))
    loop = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            yield
        finally:
            process.kill()
