"""The order in which requests are served, and who gives way when blocks run out."""

from tuili.engine.request import Sequence

#: What one level of priority is worth: a request is served as if it had come this much earlier or later. So priority decides
#: among requests of about the same age, and a low one still advances however many higher ones keep coming.
SECONDS_PER_PRIORITY = 5.0

#: A waiting request may be overtaken by one with a longer kept prefix if that came at most this many seconds later, and is
#: among the next few.
PREFIX_PATIENCE = 1.0
PREFIX_CANDIDATES = 8


def request_key(priority: int, arrival: float, number: int) -> tuple[float, int]:
    """Place of a request in every queue, lower first: priority (lower numbers first, as in vLLM), then arrival. ``number``
    counts submissions and decides ties."""
    return arrival + priority * SECONDS_PER_PRIORITY, number


def victim(running: list[Sequence]) -> Sequence:
    """Whom to preempt: the one that would be served last. ``running`` is in order of key, so the oldest is never preempted
    for a younger one and always finishes."""
    return running[-1]


def may_overtake(younger: Sequence, first: Sequence, place: int) -> bool:
    """Whether a sequence, ``place`` places behind the first of the queue, may go before it for its kept prefix."""
    return place < PREFIX_CANDIDATES and younger.key[0] <= first.key[0] + PREFIX_PATIENCE
