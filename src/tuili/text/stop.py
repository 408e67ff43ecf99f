"""Stop strings in a stream of text."""

from collections.abc import Sequence

from tuili.errors import InvalidRequest


class StopMatcher:
    """Find the first of several stop strings, however the text is split.

    The stop string that is complete first wins; of those complete at the same character, the longest. Only text that may still
    become a stop string is held back. ``include`` keeps the stop string in the output.

    Raises InvalidRequest for an empty stop string, which would match everywhere.
    """

    __slots__ = ("_held", "_include", "_longest", "_matched", "_prefixes", "_stops")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        if not all(stops):
            raise InvalidRequest("stop holds an empty string, which would match everywhere; leave it out", field="stop")
        self._stops = tuple(stops)
        self._prefixes = frozenset(stop[:n] for stop in self._stops for n in range(1, len(stop)))
        self._longest = max(map(len, self._stops), default=0)
        self._include = include
        self._held = ""
        self._matched = False

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that may be emitted now, and the stop string that ended it, if one did. After a match nothing more comes."""
        if self._matched:
            return "", None
        if not self._stops:
            return text, None
        text = self._held + text
        ends = [(start + len(stop), -len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            end, _, stop = min(ends)
            self._matched, self._held = True, ""
            return text[: end if self._include else end - len(stop)], stop
        certain = self._certain(text)
        self._held = text[certain:]
        return text[:certain], None

    def flush(self) -> str:
        """What was held back, when the sequence ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _certain(self, text: str) -> int:
        """Where the longest end of ``text`` that begins a stop string starts."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start:] in self._prefixes:
                return start
        return len(text)
