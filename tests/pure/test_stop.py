"""Stop strings, whatever the split of the text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuili.errors import InvalidRequest
from tuili.text.stop import StopMatcher

LETTERS = st.text("ab<|", max_size=40)


def run(stops: list[str], chunks: list[str], include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include)
    emitted: list[str] = []
    for chunk in chunks:
        text, stop = matcher.push(chunk)
        emitted.append(text)
        if stop is not None:
            assert matcher.push("more") == ("", None) and matcher.flush() == ""
            return emitted, stop
    return [*emitted, matcher.flush()], None


def split(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def first_complete(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The definition, character by character."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return end, max(done, key=len)
    return None


@given(
    LETTERS,
    st.lists(st.text("ab<|", min_size=1, max_size=5), max_size=4),
    st.lists(st.integers(0, 40), max_size=12),
    st.booleans(),
)
def test_any_split_gives_the_text_up_to_the_first_complete_stop(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    """D-STOP-1: the joined stream is the text up to the stop string, or through it with the include flag."""
    emitted, stop = run(stops, split(text, cuts), include)
    expected = first_complete(text, stops)
    if expected is None:
        assert stop is None and "".join(emitted) == text
    else:
        end, wanted = expected
        assert stop == wanted
        assert "".join(emitted) == text[: end if include else end - len(wanted)]


@given(LETTERS, st.lists(st.text("ab<|", min_size=1, max_size=5), min_size=1, max_size=4))
def test_only_a_possible_stop_is_held_back(text: str, stops: list[str]) -> None:
    """D-STOP-1: what is held back is the beginning of a stop string."""
    matcher = StopMatcher(stops)
    emitted, stop = matcher.push(text)
    if stop is None:
        held = text[len(emitted) :]
        assert not held or any(candidate.startswith(held) for candidate in stops)


def test_none_means_none() -> None:
    """D-STOP-2: without stop strings everything passes at once."""
    assert run([], ["abc", "", "d"]) == (["abc", "", "d", ""], None)


def test_an_empty_stop_string_is_refused() -> None:
    """D-STOP-2: an empty stop string would match everywhere."""
    with pytest.raises(InvalidRequest, match="empty string"):
        StopMatcher(["", "ZZZ"])
