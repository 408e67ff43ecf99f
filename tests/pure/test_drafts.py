"""Guessing ahead: what is guessed, how much, and that the text is the same as without."""

import random
from collections.abc import Iterator

import pytest

from support.fake_model import fake_engine
from tuili.config.options import SpeculativeConfig
from tuili.engine.llm import LLM
from tuili.engine.output import merge
from tuili.engine.speculate import Drafter, PromptLookup
from tuili.errors import ConfigError
from tuili.types import RequestOutput, SamplingParams, SequenceDelta, Usage


def test_the_longest_match_wins_and_the_latest() -> None:
    lookup = PromptLookup(1, 3)
    assert lookup.propose([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2) == [9, 2]  # 1 2 3 was seen once; 2 3 later, but is shorter
    assert PromptLookup(1, 2).propose([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2) == [8, 1]
    assert PromptLookup(2, 3).propose([1, 2, 3, 4], 4) == []


def test_a_run_that_reaches_the_end_repeats() -> None:
    assert PromptLookup(1, 2).propose([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]


def test_proposals_do_not_depend_on_how_often_they_were_asked_for() -> None:
    rng = random.Random(5)
    tokens = [rng.randrange(4) for _ in range(200)]
    growing = PromptLookup(2, 4)
    for end in range(1, len(tokens)):
        assert growing.propose(tokens[:end], 4) == PromptLookup(2, 4).propose(tokens[:end], 4)


def test_the_number_of_guesses_follows_their_success() -> None:
    drafter = Drafter(SpeculativeConfig("ngram", num_speculative_tokens=8))
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]
    assert len(drafter.propose(tokens, 100)) == 8
    drafter.note(8, 2)
    assert len(drafter.propose(tokens, 100)) == 2
    drafter.note(2, 2)
    assert len(drafter.propose(tokens, 100)) == 4
    assert len(drafter.propose(tokens, 1)) == 1


def test_guesses_that_fail_pause_longer_each_time_and_come_back() -> None:
    drafter = Drafter(SpeculativeConfig("ngram"))
    tokens = [1, 2, 3, 4, 1, 2]
    asked = 0
    for _ in range(1000):
        if guesses := drafter.propose(tokens, 100):
            asked += 1
            drafter.note(len(guesses), 0)
    assert 10 < asked < 100
    while not (guesses := drafter.propose(tokens, 100)):
        pass
    drafter.note(len(guesses), len(guesses))
    assert drafter.propose(tokens, 100)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs a method"),
        ({"method": "magic"}, "has to be ngram"),
        ({"method": "ngram", "tokens": 3}, "has no tokens"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens is True"),
        ({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3}, "prompt_lookup_max is 3"),
    ],
)
def test_bad_settings_are_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SpeculativeConfig.read(given)


def requests() -> Iterator[tuple[list[int], SamplingParams]]:
    """D-SPEC-1: repetitive prompts; greedy, seeded, with log-probabilities, penalties, stops, ends inside a guess."""
    rng = random.Random(9)
    for number in range(40):
        unit = [rng.randrange(3, 60) for _ in range(rng.choice((1, 2, 5, 12)))]
        kinds: list[dict[str, object]] = [
            {"temperature": 0.0},
            {"temperature": 1.0, "logprobs": 2},
            {"temperature": 0.0, "repetition_penalty": 1.3},
            {"temperature": 0.0, "stop": ("e",)},
            {"temperature": 0.5, "n": 2},
            {"temperature": 0.0, "prompt_logprobs": 1, "logprobs": 0},
            {"temperature": 0.0, "min_tokens": 1},
        ]
        params = SamplingParams(seed=number, max_tokens=rng.choice((1, 2, 7, 30)), **kinds[number % len(kinds)])  # type: ignore[arg-type]
        yield (unit * 40)[: rng.randrange(2, 90)], params


@pytest.mark.parametrize("script", ["", "abcabcabcabcabc hello hello hello hello"])
@pytest.mark.parametrize("num_blocks", [(300,), (9,)])
@pytest.mark.parametrize("guesses", [1, 4, 8])
def test_the_text_is_the_same(script: str, num_blocks: tuple[int, ...], guesses: int) -> None:
    """D-SPEC-1: token for token, with few blocks (preemptions) and many; ``completion_tokens`` never above ``max_tokens``."""
    prompts, params = zip(*requests(), strict=True)
    plain = LLM(fake_engine(script=script, num_blocks=num_blocks, max_model_len=128)).generate(prompts, params)
    speculative = SpeculativeConfig("ngram", num_speculative_tokens=guesses, prompt_lookup_min=1)
    loaded = fake_engine(script=script, num_blocks=num_blocks, max_model_len=128, speculative_config=speculative)
    assert LLM(loaded).generate(prompts, params) == plain
    scheduler = loaded.engine.scheduler
    scheduler.kv.check()
    assert scheduler.kv.usage == 0
    assert scheduler.draft_stats.num_draft_tokens > 0
    if script and len(num_blocks) == 1 and num_blocks[0] > 100:
        assert scheduler.draft_stats.num_accepted_tokens > 0
    for result, one in zip(plain, params, strict=True):
        assert result.usage.completion_tokens <= (one.max_tokens or 0) * one.n


def test_a_stream_gets_each_sequence_once_an_output() -> None:
    """A step may give a sequence several tokens; a reader still sees one delta of it."""

    def output(*deltas: SequenceDelta) -> RequestOutput:
        return RequestOutput("a", deltas, Usage(1, len(deltas)))

    first, second = SequenceDelta(0, "a", (1,)), SequenceDelta(0, "b", (2,), finish_reason="stop")
    other = SequenceDelta(1, "c", (3,))
    assert merge([output(first, other)]) == output(first, other)
    for outputs in ([output(first, other, second)], [output(first, other), output(second)]):
        assert merge(outputs).deltas == (SequenceDelta(0, "ab", (1, 2), finish_reason="stop"), other)
