"""Find control tokens in text: leftmost, then longest, as the tokenizers library does for added tokens."""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE


class ControlTokens:
    """The texts that are control tokens of a model, and where they occur.

    A tokenizer without any model but its added tokens does the search: one linear pass, whatever the number of tokens.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = dict(ids)
        self._finder = Tokenizer(BPE()) if self.ids else None
        if self._finder is not None:
            self._finder.add_special_tokens([AddedToken(text, normalized=False) for text in self.ids])

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """Occurrences as (start, end, token id), ascending, not overlapping; positions count characters."""
        if self._finder is None or not self._first.search(text):
            return []
        spans = self._finder.encode(text, add_special_tokens=False).offsets
        return [(start, end, self.ids[text[start:end]]) for start, end in spans]

    def breaks(self, text: str) -> list[int]:
        """Positions of the characters of ``text`` which, when none of them may be part of a control token, leave none to be
        formed with ``text``: neither inside it, nor across its ends with what comes before or after.
        """
        if not self.ids:
            return []
        found: set[int] = set()
        if self._first.search(text):
            found = self._starts(text)
            found.update(len(text) - n for n in range(1, min(self._longest, len(text)) + 1) if text[-n:] in self._heads)
        start = text[: self._longest]
        if self._last.search(start) and any(start[:n] in self._tails for n in range(1, len(start) + 1)):
            found.add(0)
        return sorted(found)

    def _starts(self, text: str) -> set[int]:
        """Where any control token starts, overlapping ones too."""
        found: set[int] = set()
        windows = [(0, len(text))]
        while windows:
            base, stop = windows.pop()
            for start, end, _ in self.find(text[base:stop]):
                if base + start in found:
                    continue
                found.add(base + start)
                if text[base + start : base + end] in self._overlapped:
                    windows.append((base + start + 1, base + end - 1 + self._longest))
        return found

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.ids), default=0)

    @cached_property
    def _heads(self) -> frozenset[str]:
        return frozenset(text[:n] for text in self.ids for n in range(1, len(text)))

    @cached_property
    def _tails(self) -> frozenset[str]:
        return frozenset(text[n:] for text in self.ids for n in range(1, len(text)))

    @cached_property
    def _overlapped(self) -> frozenset[str]:
        """Control tokens inside which another one can start; hardly any vocabulary has one."""

        def starts_inside(text: str) -> bool:
            rests = [text[n:] for n in range(1, len(text))]
            return any(rest in self._heads or any(rest[:n] in self.ids for n in range(1, len(rest) + 1)) for rest in rests)

        return frozenset(filter(starts_inside, self.ids))

    @cached_property
    def _first(self) -> re.Pattern[str]:
        return _any_of(text[0] for text in self.ids)

    @cached_property
    def _last(self) -> re.Pattern[str]:
        return _any_of(text[-1] for text in self.ids)


def _any_of(characters: Iterable[str]) -> re.Pattern[str]:
    return re.compile("[" + "".join(map(re.escape, sorted(set(characters)))) + "]")
