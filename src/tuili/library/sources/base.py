"""What a source of model files offers, and what it may say on the way."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from tuili.library.catalogue import ModelFile

SourceT_contra = TypeVar("SourceT_contra", contravariant=True)


class Report(Protocol):
    """Who is told how a transfer goes: the command line draws it, tests record it."""

    def status(self, message: str) -> None:
        """One line that a person wants to know: which source, why the next one."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Bytes on disk so far, and in all; may go back when a transfer starts again."""
        ...


class Fetcher(Protocol[SourceT_contra]):
    """Streams a file's bytes from one kind of source."""

    def stream(self, source: SourceT_contra, file: ModelFile, offset: int, report: Report) -> Iterator[bytes]:
        """The bytes of ``file`` from ``offset`` on, in order. Raises DownloadError; what came before it counts."""
        ...
