"""Guesses at a sequence's next tokens, checked by the model in one step. Guesses change the speed, never the text: the token of
each place is drawn with that place's own noise, and a guess counts only where it equals what was drawn.

``PromptLookup`` is prompt lookup decoding (Saxena 2023; vLLM's "ngram"): the last few tokens have occurred before, so what came
after them may come again.
"""

from collections import Counter
from dataclasses import dataclass, field

from tuili.config.options import SpeculativeConfig


@dataclass(slots=True)
class DraftStats:
    """Over all sequences. ``accepted_at[i]``: how often guess number i of a step was right."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_at: Counter[int] = field(default_factory=Counter[int])

    def note(self, num_guessed: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.num_draft_tokens += num_guessed
        self.num_accepted_tokens += num_accepted
        self.accepted_at.update(range(num_accepted))


class PromptLookup:
    """Where in a growing sequence each run of tokens was last seen."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in self._lengths]
        self._num_seen = 0

    def propose(self, token_ids: list[int], count: int) -> list[int]:
        """Up to ``count`` tokens that came after the last tokens when they were last seen; none where they never were."""
        self._learn(token_ids)
        for length, after in zip(self._lengths, self._after, strict=True):
            start = after.get(tuple(token_ids[-length:]))
            if start is not None:
                known = len(token_ids)
                guesses: list[int] = []
                for i in range(start, start + count):  # a run that reaches the end goes on with its own guesses
                    guesses.append(token_ids[i] if i < known else guesses[i - known])
                return guesses
        return []

    def _learn(self, token_ids: list[int]) -> None:
        """Take in the runs that end before the last token: those that something is known to follow."""
        for end in range(max(self._num_seen, 1), len(token_ids)):
            for length, after in zip(self._lengths, self._after, strict=True):
                if length <= end:
                    after[tuple(token_ids[end - length : end])] = end
        self._num_seen = len(token_ids)


#: A sequence whose guesses were wrong so often pauses, for longer each time in a row.
MIN_ACCEPTANCE = 0.3
FIRST_PAUSE, LONGEST_PAUSE = 8, 128
_MEMORY = 0.8


class Drafter:
    """Guesses for one sequence: how many, and whether at all, follows from how the last ones did."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._lookup = PromptLookup(config.prompt_lookup_min, config.prompt_lookup_max)
        self._most = config.num_speculative_tokens
        self._length = self._most
        self._acceptance = 1.0
        self._pause = FIRST_PAUSE
        self._resting = 0

    def propose(self, token_ids: list[int], most: int) -> list[int]:
        if self._resting > 0:
            self._resting -= 1
            return []
        return self._lookup.propose(token_ids, min(self._length, most))

    def note(self, num_guessed: int, num_accepted: int) -> None:
        """How the last proposal did."""
        self._acceptance = _MEMORY * self._acceptance + (1 - _MEMORY) * num_accepted / num_guessed
        all_right = num_accepted == num_guessed
        self._length = min(2 * self._length, self._most) if all_right else max(num_accepted, 1)
        if all_right:
            self._pause = FIRST_PAUSE
        if self._acceptance < MIN_ACCEPTANCE:
            self._resting, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
            self._acceptance = 2 * MIN_ACCEPTANCE
