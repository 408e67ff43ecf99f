"""What the metered sandbox of chat templates counts, and what it asks before an operation whose result may be large."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

from jinja2.exceptions import SecurityError

BASE_BUDGET = 16_000_000  # characters and items
COPIES = 64  # of the conversation that a template may make,
COPIES_PER_MESSAGE = 4  # and this many more for each message: some templates append to one text, message by message
TIME_LIMIT = 3.0  # seconds of this thread's processor time
CLOCK_INTERVAL = 16  # operations between looks at the clock, which costs more than most of them
OPERATION = 32  # what an operation costs, beside the size of what it touches
MACRO_CALL = 512
MAX_INT = 2**63  # larger numbers serve no template, and make arithmetic and hashing slow
CONTAINERS = (list, tuple, Mapping, type({}.keys()), type({}.values()), type({}.items()))


class TooMuchWork(Exception):
    """The template used up its budget or its time."""


class Meter:
    """The budget of one rendering."""

    def __init__(self, input_size: int, num_messages: int) -> None:
        self.left = BASE_BUDGET + input_size * (COPIES + COPIES_PER_MESSAGE * num_messages)
        self.deadline = time.thread_time() + TIME_LIMIT
        self._until_clock = CLOCK_INTERVAL
        self._sizes: dict[int, tuple[int, object]] = {}  # by identity; keeps the objects, so that no id is used twice

    def charge(self, amount: int) -> None:
        self.left -= OPERATION + amount
        if self.left < 0:
            raise TooMuchWork("it makes or reads too much text")
        self._until_clock -= 1
        if self._until_clock > 0:
            return
        self._until_clock = CLOCK_INTERVAL
        if time.thread_time() > self.deadline:
            raise TooMuchWork(f"it runs for more than {TIME_LIMIT:g} seconds")

    def weigh(self, value: object) -> int:
        """Size of ``value``: characters of text, and of everything inside a container, counted as often as it is reachable."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, CONTAINERS):
            known = self._sizes.get(id(value))
            if known is None:
                inside: Iterable[object] = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
                size = 8 + sum(map(self.weigh, inside))
                known = self._sizes[id(value)] = (size, value)
            return known[0]
        return span(value)

    def charge_for(self, *values: object) -> None:
        """Charge for an operation that looks into containers: comparing, printing."""
        self.charge(sum(map(self.weigh, values)))

    def charge_shallow(self, *values: object) -> None:
        """Charge for an operation that takes the items of a container as they are: counting, slicing, looping."""
        self.charge(sum(map(span, values)))


def span(value: object) -> int:
    """Size of ``value`` itself: characters, or 8 for each item."""
    return len(value) if isinstance(value, str) else 8 * len(value) if isinstance(value, (*CONTAINERS, range)) else 8


def guard_operator(meter: Meter, operator: str, left: Any, right: Any) -> None:
    """Charge for the result before it is made."""
    meter.charge_shallow(left, right)
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and not isinstance(value, int | float):
                meter.charge(span(value) * max(times, 0))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * abs(right) > 256:
            raise TooMuchWork("it computes with huge numbers")
    elif operator == "%" and isinstance(left, str):
        meter.charge_for(right)
        _guard_format(meter, left)


def _guard_format(meter: Meter, text: str, *args: Any, **kwargs: Any) -> None:
    """printf-style formats: a width or precision could ask for any length."""
    for spec in text.split("%")[1:]:
        head = spec.lstrip("#0- +")
        if head.startswith(("*", ".*")) or re.match(r"\d*\.?\d*\*|\d{4}|\d*\.\d{4}", head):
            raise TooMuchWork("it formats text to a great width")


def guard_method(meter: Meter, text: str, name: str, args: tuple[Any, ...]) -> None:
    if name == "replace":
        _guard_replace(meter, text, *args)
    elif name == "join" and args:
        meter.charge_for(args[0])
        _guard_join(meter, args[0], text)
    elif name in ("center", "ljust", "rjust", "zfill") and args:
        _guard_width(meter, text, *args)


def _guard_replace(meter: Meter, text: Any, old: Any = "", new: Any = "", *args: Any, **kwargs: Any) -> None:
    times = len(text) + 1 if not old else len(text) // len(old) if isinstance(old, str) else 0
    old, new = kwargs.get("old", old), kwargs.get("new", new)
    meter.charge(times * meter.weigh(new) if isinstance(text, str) else 0)


def _guard_join(meter: Meter, items: Any, separator: Any = "", *args: Any, **kwargs: Any) -> None:
    separator = kwargs.get("d", separator)
    count = len(items) if isinstance(items, Sized) else 100_000  # what a generator over the longest range may give
    meter.charge(count * meter.weigh(separator) if separator else 0)


def _guard_width(meter: Meter, text: Any, width: Any = 80, *args: Any, **kwargs: Any) -> None:
    width = kwargs.get("width", width)
    meter.charge(max(width, 0) if isinstance(width, int) else 0)


def _guard_indent(meter: Meter, text: Any, width: Any = 4, *args: Any, **kwargs: Any) -> None:
    width = kwargs.get("width", width)
    per_line = width if isinstance(width, int) else meter.weigh(width)
    meter.charge(max(per_line, 0) * (len(text.splitlines()) + 1) if isinstance(text, str) else 0)


def _guard_count(meter: Meter, value: Any, count: Any = 1, *args: Any, **kwargs: Any) -> None:
    for number in (count, *kwargs.values()):
        if isinstance(number, int):
            meter.charge(8 * abs(number))


def _guard_round(meter: Meter, value: Any, precision: Any = 0, *args: Any, **kwargs: Any) -> None:
    precision = kwargs.get("precision", precision)
    if isinstance(precision, int) and abs(precision) > 50:
        raise TooMuchWork("it rounds to more than 50 digits")


def _guard_sum(meter: Meter, value: Any, attribute: Any = None, start: Any = 0, *args: Any, **kwargs: Any) -> None:
    if not isinstance(kwargs.get("start", start), int | float):
        raise SecurityError("sum adds numbers only in a chat template")


GUARDS: dict[str, Callable[..., None]] = {
    "batch": _guard_count,
    "center": _guard_width,
    "format": _guard_format,
    "indent": _guard_indent,
    "join": _guard_join,
    "replace": _guard_replace,
    "round": _guard_round,
    "slice": _guard_count,
    "sum": _guard_sum,
}


def check_int(value: int) -> None:
    if not -MAX_INT < value < MAX_INT:
        raise TooMuchWork("it computes with huge numbers")
