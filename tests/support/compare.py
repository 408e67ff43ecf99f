"""How near two sets of logits are."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


def cosines(a: Logits, b: Logits) -> npt.NDArray[np.float64]:
    """Cosine of each pair of rows."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))


def nmse(expected: Logits, got: Logits) -> float:
    """Mean squared error over the mean square of what was expected."""
    e, g = expected.astype(np.float64), got.astype(np.float64)
    return float(((g - e) ** 2).sum() / (e * e).sum())


@dataclass(frozen=True)
class Agreement:
    """Of the likeliest tokens: ``share`` over all positions; ``clear_misses``: positions that differ though the oracle's best
    two logits are more than ``gap`` apart."""

    share: float
    clear_misses: tuple[int, ...]


def agreement(oracle: Logits, got: Logits, gap: float = 0.5) -> Agreement:
    same = oracle.argmax(-1) == got.argmax(-1)
    best_two = np.partition(oracle, -2, axis=-1)[:, -2:]
    clear = best_two[:, 1] - best_two[:, 0] > gap
    return Agreement(float(same.mean()), tuple(np.flatnonzero(clear & ~same).tolist()))
