"""Two sides take turns, A B A B, so that a slow minute of the machine hits both; their medians are compared."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import machine

#: Lets the other side's worker threads fall asleep.
PAUSE = 0.05
#: A setting of the peer that is this far behind its best one in the warm-up is not run again.
HOPELESS = 0.85
#: Figures of one pass: name -> rate (the more, the better).
Rates = Mapping[str, float]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Series:
    """What was measured, pass by pass. ``theirs``: setting -> passes. ``bandwidth``: GB/s beside each of our passes."""

    ours: list[Rates] = field(default_factory=list)
    theirs: dict[str, list[Rates]] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)


def take_turns(
    ours: Callable[[int], Rates],
    theirs: Callable[[int, str], Rates],
    settings: Sequence[str],
    pairs: int,
    *,
    bandwidth: Callable[[], float],
    label: str = "",
) -> Series:
    """``ours(number)`` and ``theirs(number, setting)`` run pass ``number`` and give its figures; pass 0 warms up and is dropped.

    Ours goes first, so that theirs can replay the tokens that ours chose. ``bandwidth`` measures how many GB/s can be read now.
    """
    warm = _one_pair(ours, theirs, settings, 0, bandwidth)
    settings = _hopeful({setting: passes[0] for setting, passes in warm.theirs.items()})
    series = Series(theirs={setting: [] for setting in settings})
    for number in range(1, pairs + 1):
        one = _one_pair(ours, theirs, settings, number, bandwidth)
        series.ours += one.ours
        series.bandwidth += one.bandwidth
        for setting in settings:
            series.theirs[setting] += one.theirs[setting]
        say(f"  {label} pair {number}: {_shown('ours', one.ours[0])}; {_all_shown(one.theirs)}; {machine.load()}")
    return series


def _one_pair(
    ours: Callable[[int], Rates],
    theirs: Callable[[int, str], Rates],
    settings: Sequence[str],
    number: int,
    bandwidth: Callable[[], float],
) -> Series:
    series = Series()
    before = bandwidth()
    series.ours.append(ours(number))
    series.bandwidth.append((before + bandwidth()) / 2)
    time.sleep(PAUSE)
    for setting in settings:
        series.theirs[setting] = [theirs(number, setting)]
        time.sleep(PAUSE)
    return series


def _hopeful(rates: Mapping[str, Rates]) -> list[str]:
    """The settings that are, for at least one figure, about as good as any."""
    best = {figure: max(one[figure] for one in rates.values()) for figure in next(iter(rates.values()))}
    return [setting for setting, one in rates.items() if any(one[figure] > HOPELESS * best[figure] for figure in best)]


def row(model: str, figure: str, series: Series) -> dict[str, Any]:
    """Medians of both sides, the peer's at its better setting; their ratio; the range of the pairs' ratios over their median."""
    ours = [one[figure] for one in series.ours]
    setting, theirs = max(
        ((setting, [one[figure] for one in passes]) for setting, passes in series.theirs.items()),
        key=lambda item: statistics.median(item[1]),
    )
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "model": model,
        "test": figure,
        "ours": float(f"{statistics.median(ours):.4g}"),
        "theirs": float(f"{statistics.median(theirs):.4g}"),
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 3),
        "spread": round((max(ratios) - min(ratios)) / statistics.median(ratios), 3),
        "setting": setting,
        "bandwidth": round(statistics.median(series.bandwidth), 1),
    }


def judged(result: dict[str, Any], bar: float | None, *, of: str = "ratio", at_most: bool = False) -> dict[str, Any]:
    """With the bar that field ``of`` has to reach, where there is one, and whether it does."""
    if bar is None:
        return result
    return {**result, "bar": bar, "met": result[of] <= bar if at_most else result[of] >= bar}


def shown(result: Mapping[str, Any]) -> str:
    """A row as one line for people."""
    spread = f"spread {result['spread']:.2f}" if "spread" in result else ""
    bar = f"bar {result['bar']:g} {'met' if result['met'] else 'MISSED'}" if "bar" in result else ""
    numbers = f"{result['ours']:10.4g} {result['theirs']:10.4g}  ratio {result['ratio']:6.3f}"
    return f"{result['model']:28} {result['test']:18} {numbers}  {spread:11}  {bar}".rstrip()


def _shown(name: str, rates: Rates) -> str:
    return f"{name} " + " ".join(f"{figure} {rate:.1f}" for figure, rate in rates.items())


def _all_shown(theirs: Mapping[str, Sequence[Rates]]) -> str:
    return "; ".join(_shown(f"theirs ({setting})", passes[-1]) for setting, passes in theirs.items())
