"""How far something that takes a while got: whoever does it calls, whoever shows it is called."""

from typing import Protocol


class LoadProgress(Protocol):
    """Is told how far a stage of loading ("packing", "writing") got, in bytes."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


def say_nothing(stage: str, done: int, total: int, /) -> None:
    """Progress that nobody wants to know of."""
