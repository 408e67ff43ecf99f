"""Reports of a transfer or of a load: a bar on a terminal, a few lines in a log, or nothing. All of it on stderr."""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tuili.cli.console import note, size_text
from tuili.library.sources.base import Report
from tuili.observe.progress import LoadProgress, say_nothing

_LINE_SECONDS = 10.0

#: Loads that take no longer show nothing.
_PATIENCE = 0.5
_REDRAW_SECONDS = 0.1
_BAR_WIDTH = 24


class Quiet:
    """Says nothing."""

    def status(self, message: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...


class Lines:
    """Says every status line, and how far it got every ten seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_SECONDS

    def status(self, message: str) -> None:
        note(message)

    def progress(self, done: int, total: int) -> None:
        if time.monotonic() >= self._next and done < total:
            self._next = time.monotonic() + _LINE_SECONDS
            note(f"{size_text(done)} of {size_text(total)} ({100 * done // total} %)")


class Bar:
    """A bar with speed and time left, drawn by rich; status lines scroll by above it."""

    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def status(self, message: str) -> None:
        self._bar.console.print(message, style="dim", markup=False, highlight=False)

    def progress(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total, visible=True)


@contextmanager
def transfer_report(quiet: bool) -> Generator[Report]:
    """The report that suits where stderr goes."""
    if quiet:
        yield Quiet()
    elif not sys.stderr.isatty():
        yield Lines()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            yield Bar(bar, bar.add_task("", total=None, visible=False))


class LoadingBar:
    """How far a load got, on one line of a terminal, once it is known to take a while. Plain characters: drawing must not cost
    the time that it reports."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PATIENCE
        self._drawn = ""

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _REDRAW_SECONDS
        filled = _BAR_WIDTH * done // total
        self._draw(f"{stage} weights {'━' * filled}{' ' * (_BAR_WIDTH - filled)} {size_text(done)} of {size_text(total)}")

    def clear(self) -> None:
        self._draw("")

    def _draw(self, line: str) -> None:
        if line != self._drawn:
            sys.stderr.write(f"\r{' ' * len(self._drawn)}\r{line}")
            sys.stderr.flush()
            self._drawn = line


@contextmanager
def loading_progress(quiet: bool) -> Generator[LoadProgress]:
    """The report of a load that suits where stderr goes. ``quiet`` keeps warnings about packed weights unsaid, too."""
    if quiet:
        import logging

        logging.getLogger("tuili").setLevel(logging.ERROR)
    if quiet or not sys.stderr.isatty():
        yield say_nothing
        return
    bar = LoadingBar()
    try:
        yield bar
    finally:
        bar.clear()
