"""Every promise about generation, on the fake backend: what stops it, what bans tokens, what survives preemption."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.fake_model import fake_engine
from tuili.engine.build import LoadedEngine
from tuili.engine.llm import LLM, GenerationResult, run_offline
from tuili.errors import ContextTooLong, InvalidRequest, TemplateRefused
from tuili.types import GenerateRequest, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=40)
TEXT = "Hello there, thin teller: the hell in the other inn."


def generate(
    loaded: LoadedEngine, prompts: str | Sequence[str | Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[GenerationResult]:
    results = LLM(loaded).generate(prompts, params)
    scheduler = loaded.engine.scheduler
    scheduler.kv.check()
    assert not scheduler.running and not scheduler.waiting
    assert scheduler.kv.usage == 0
    return results


def one(loaded: LoadedEngine, prompt: str | Sequence[int], params: SamplingParams) -> GenerationResult:
    return generate(loaded, [prompt], params)[0]


def eos(loaded: LoadedEngine) -> int:
    return min(loaded.tokenizer.eos_token_ids)


def test_ends_at_the_end_of_sequence() -> None:
    loaded = fake_engine(script=TEXT)
    result = one(loaded, "hi", replace(GREEDY, max_tokens=None))
    assert result.text == TEXT
    assert result.outputs[0].finish_reason == "stop"
    assert result.outputs[0].stop_reason is None
    assert result.outputs[0].token_ids[-1] == eos(loaded), "the token counts, though it is no text"
    assert result.usage.completion_tokens == len(result.outputs[0].token_ids)


def test_ignore_eos_runs_to_max_tokens() -> None:
    result = one(fake_engine(script="Hi"), "hi", replace(GREEDY, ignore_eos=True, max_tokens=30))
    assert len(result.outputs[0].token_ids) == 30
    assert result.outputs[0].finish_reason == "length"
    assert result.text.startswith("Hi")


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", ["there", "e, th", "o the", "n.", "Hello there, thin teller: the hell in the other inn."])
def test_stop_strings_end_at_their_first_occurrence(stop: str, include: bool) -> None:
    """D-STOP-1: across token borders, streamed and not, with and without the stop string."""
    loaded = fake_engine(script=TEXT)
    params = replace(GREEDY, stop=("ZZZ", stop), include_stop_str_in_output=include, max_tokens=None)
    result = one(loaded, "hi", params)
    end = TEXT.index(stop) + (len(stop) if include else 0)
    assert result.text == TEXT[:end]
    assert result.outputs[0].finish_reason == "stop"
    assert result.outputs[0].stop_reason == stop
    pieces = [d.text for o in run_offline(loaded, [_request("a", loaded, "hi", params)]) for d in o.deltas]
    assert "".join(pieces) == result.text


def test_a_stop_string_that_never_comes_is_no_loss() -> None:
    """D-STOP-1: text held back because it might become a stop string comes out at the end."""
    result = one(fake_engine(script="Hello th"), "hi", replace(GREEDY, stop=("there",)))
    assert result.text == "Hello th"


def test_stop_tokens() -> None:
    loaded = fake_engine(script=TEXT)
    comma = loaded.tokenizer.encode(",")[0]
    result = one(loaded, "hi", replace(GREEDY, stop_token_ids=(comma,)))
    assert result.text == "Hello there"
    assert (result.outputs[0].finish_reason, result.outputs[0].stop_reason) == ("stop", comma)
    assert result.outputs[0].token_ids[-1] == comma
    kept = one(loaded, "hi", replace(GREEDY, stop_token_ids=(comma,), include_stop_str_in_output=True))
    assert kept.text == "Hello there,"


def test_min_tokens_bans_every_way_to_stop() -> None:
    loaded = fake_engine(script="Hi, you.")
    comma = loaded.tokenizer.encode(",")[0]
    params = replace(GREEDY, min_tokens=12, stop_token_ids=(comma,), stop=("you",), max_tokens=30)
    result = one(loaded, "hi", params)
    tokens = result.outputs[0].token_ids
    assert len(tokens) >= 12
    assert not set(tokens[:12]) & {comma, eos(loaded)}
    assert "you" in result.text, "the stop string came too early to count"


def test_max_tokens_zero_gives_prompt_logprobs_alone() -> None:
    """D-SAMP-3: zero new tokens with echo."""
    loaded = fake_engine(script=TEXT)
    result = one(loaded, "hello in there", SamplingParams(max_tokens=0, prompt_logprobs=2, n=2))
    assert [o.token_ids for o in result.outputs] == [(), ()]
    assert [o.finish_reason for o in result.outputs] == ["length", "length"]
    assert result.usage.completion_tokens == 0
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids)
    one_token = one(loaded, [65], SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert one_token.prompt_logprobs == (None,)
    nothing = one(loaded, [65], SamplingParams(max_tokens=0))
    assert nothing.outputs[0].finish_reason == "length" and nothing.prompt_logprobs is None


def test_the_context_is_the_end() -> None:
    """D-SAMP-3: capped to what is left, "length" at the end of the context, 400 with both numbers beyond it."""
    loaded = fake_engine(max_model_len=40)
    for params in (replace(GREEDY, max_tokens=100_000), replace(GREEDY, max_tokens=None)):
        result = one(loaded, [65] * 30, replace(params, ignore_eos=True))
        assert len(result.outputs[0].token_ids) == 10
        assert result.outputs[0].finish_reason == "length"
    assert len(one(loaded, [65] * 39, replace(GREEDY, ignore_eos=True)).outputs[0].token_ids) == 1
    with pytest.raises(ContextTooLong, match="40 tokens; the context is 40, which leaves no room"):
        one(loaded, [65] * 40, GREEDY)
    with pytest.raises(ContextTooLong, match="41 tokens; the context is 40"):
        one(loaded, [65] * 41, replace(GREEDY, max_tokens=0))
    echoed = one(loaded, [65] * 40, SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert echoed.prompt_logprobs is not None and len(echoed.prompt_logprobs) == 40


def test_what_can_never_fit_is_refused_at_once() -> None:
    """D-SCHED-1: a pool of 20 blocks of 16 tokens, context 4096, a prompt of 600."""
    loaded = fake_engine(max_model_len=4096, num_blocks=(20,), script="yes")
    with pytest.raises(ContextTooLong, match="600 tokens; the KV cache holds 320"):
        one(loaded, [65] * 600, GREEDY)
    results = generate(loaded, [[65] * 100] + ["hi"] * 5, replace(GREEDY, max_tokens=4000))
    assert all(result.text == "yes" for result in results)
    full = one(loaded, [65] * 100, SamplingParams(max_tokens=4000, ignore_eos=True, seed=1))
    assert (len(full.outputs[0].token_ids), full.outputs[0].finish_reason) == (220, "length")


@pytest.mark.parametrize(
    "change",
    [
        {"logit_bias": {999_999_999: 5.0}},
        {"logit_bias": {-1: 5.0}},
        {"stop_token_ids": (-1,)},
        {"stop_token_ids": (999_999_999,)},
        {"allowed_token_ids": (999_999_999,)},
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_name(change: dict[str, object]) -> None:
    """D-SAMP-1: the field is named, and neither the vocabulary's size nor the padding behind it is accepted."""
    loaded = fake_engine(padding=5)
    (field,) = change
    with pytest.raises(InvalidRequest, match=field) as caught:
        one(loaded, "hi", replace(GREEDY, **change))  # type: ignore[arg-type]
    assert caught.value.field == field
    size = loaded.tokenizer.vocab_size
    with pytest.raises(InvalidRequest, match=f"token id {size}; this model's ids go from 0 to {size - 1}"):
        one(loaded, "hi", replace(GREEDY, allowed_token_ids=(size,)))
    with pytest.raises(InvalidRequest, match="prompt"):
        one(loaded, [size], GREEDY)
    with pytest.raises(InvalidRequest, match="empty"):
        one(loaded, [], GREEDY)


def test_padding_is_never_sampled() -> None:
    """D-SAMP-1: ids between the tokenizer's size and the width of the logits."""
    loaded = fake_engine(padding=2000)
    params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=3.0, seed=5)
    results = generate(loaded, ["a", "b"], [params, replace(params, logit_bias={65: 1.0}, min_tokens=5)])
    for result in results:
        assert max(result.outputs[0].token_ids) < loaded.tokenizer.vocab_size


def test_bias_and_allowed_tokens() -> None:
    loaded = fake_engine(script=TEXT)
    h = loaded.tokenizer.encode("H")[0]
    assert one(loaded, "hi", replace(GREEDY, logit_bias={h: -100.0})).outputs[0].token_ids[0] != h
    assert set(one(loaded, "hi", replace(GREEDY, allowed_token_ids=(65, 66), max_tokens=20)).text) <= {"A", "B"}
    forced = one(loaded, "hi", replace(GREEDY, logit_bias={67: 100.0}, max_tokens=5))
    assert forced.text == "CCCCC"


def test_bias_of_one_request_leaves_its_neighbours_alone() -> None:
    """D-SAMP-1: a second request in the same batch gives the same tokens as alone."""
    plain = SamplingParams(max_tokens=30, seed=3, ignore_eos=True, logprobs=2)
    alone = one(fake_engine(), "hello", plain)
    odd = replace(plain, logit_bias={5: 50.0, 9: -100.0}, allowed_token_ids=tuple(range(20)), min_tokens=7)
    penalised = replace(plain, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.5)
    together = generate(fake_engine(), ["hello", "hello", "hello"], [odd, plain, penalised])
    assert together[1].outputs == alone.outputs
    assert together[0].outputs[0].token_ids != alone.outputs[0].token_ids


def test_penalties_count_what_was_generated() -> None:
    """A frequency penalty that outweighs the script makes every repetition dearer."""
    loaded = fake_engine(script=[65] * 30)
    assert one(loaded, "hi", replace(GREEDY, max_tokens=20)).text == "A" * 20
    assert one(loaded, [65], replace(GREEDY, max_tokens=20, frequency_penalty=2.0)).text == "A" * 20
    text = one(loaded, [65], replace(GREEDY, max_tokens=30, frequency_penalty=2.0, repetition_penalty=3.0)).text
    assert 1 <= text.count("A") < 30


def test_seeds() -> None:
    loaded = fake_engine()
    seeded = SamplingParams(max_tokens=30, seed=11, ignore_eos=True)
    first, second = generate(loaded, ["hi", "hi"], seeded)
    assert first.outputs == second.outputs
    other = one(loaded, "hi", replace(seeded, seed=12))
    assert other.outputs != first.outputs
    unseeded = generate(loaded, ["hi", "hi"], replace(seeded, seed=None))
    assert unseeded[0].outputs != unseeded[1].outputs
    negative = one(loaded, "hi", replace(seeded, seed=-5))
    assert negative.outputs == one(loaded, "hi", replace(seeded, seed=2**64 - 5)).outputs


def test_n_sequences_have_their_own_noise_and_the_first_is_that_of_n_1() -> None:
    loaded = fake_engine(num_blocks=(400,))
    seeded = SamplingParams(max_tokens=30, seed=11, ignore_eos=True, n=4)
    prompt = "a prompt that fills more than one block of the cache, to be shared"
    four = one(loaded, prompt, seeded)
    assert [o.index for o in four.outputs] == [0, 1, 2, 3]
    assert len({o.token_ids for o in four.outputs}) == 4
    assert four.usage.completion_tokens == 120
    assert one(loaded, prompt, replace(seeded, n=1)).outputs[0] == four.outputs[0]
    assert one(fake_engine(num_blocks=(14,)), prompt, seeded).outputs == four.outputs


def test_logprobs_come_one_a_token() -> None:
    result = one(fake_engine(), "hi", SamplingParams(max_tokens=10, logprobs=3, seed=1, ignore_eos=True))
    output = result.outputs[0]
    assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)
    for entry in output.logprobs:
        assert entry.logprob < 0 and len(entry.top) == 3
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
    assert one(fake_engine(), "hi", SamplingParams(max_tokens=10)).outputs[0].logprobs == ()


MIXED = (
    SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logprobs=2),
    SamplingParams(seed=1, max_tokens=60, ignore_eos=True, presence_penalty=1.0, frequency_penalty=0.3, logprobs=1),
    SamplingParams(seed=2, max_tokens=60, repetition_penalty=1.2, min_tokens=40, prompt_logprobs=2),
    SamplingParams(seed=3, max_tokens=60, stop=("a", "7"), top_k=40, top_p=0.9, n=2),
    SamplingParams(seed=4, max_tokens=60, temperature=0.3, min_p=0.01, logit_bias={65: 2.0}, prompt_logprobs=0, logprobs=0),
    SamplingParams(seed=5, max_tokens=60, allowed_token_ids=tuple(range(40, 90)), ignore_eos=True),
)
PROMPTS = [f"request {i}: " + "some words to fill the prompt " * (i + 1) for i in range(len(MIXED))]


@pytest.mark.parametrize("windows", [(None,), (None, 24)], ids=str)
def test_preemption_changes_nothing_but_time(windows: tuple[int | None, ...]) -> None:
    """D-SCHED-2: a pool too small for everybody against a large one: tokens, text, log-probabilities, usage."""
    large = fake_engine(num_blocks=(500,) * len(windows), windows=windows)
    small = fake_engine(num_blocks=(18,) * len(windows), windows=windows)
    expected = generate(large, PROMPTS, MIXED)
    assert large.engine.scheduler.num_preemptions == 0
    assert generate(small, PROMPTS, MIXED) == expected
    assert small.engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize(("chunk", "seqs"), [(1, 3), (5, 16), (16, 1), (64, 3), (512, 16)])
def test_batches_and_chunks_change_nothing(chunk: int, seqs: int) -> None:
    expected = [one(fake_engine(num_blocks=(500,)), p, params) for p, params in zip(PROMPTS, MIXED, strict=True)]
    loaded = fake_engine(num_blocks=(500,), max_num_batched_tokens=chunk, max_num_seqs=seqs)
    assert generate(loaded, PROMPTS, MIXED) == expected


def test_streams_never_repeat_or_lose_a_token_under_preemption() -> None:
    """D-SCHED-2: no chunk is sent twice; every request ends exactly once."""
    loaded = fake_engine(num_blocks=(18,))
    requests = [_request(str(i), loaded, p, params) for i, (p, params) in enumerate(zip(PROMPTS, MIXED, strict=True))]
    tokens: dict[tuple[str, int], list[int]] = {}
    finished: list[str] = []
    prompt_logprobs: list[str] = []
    for output in run_offline(loaded, requests):
        assert output.request_id not in finished
        for delta in output.deltas:
            tokens.setdefault((output.request_id, delta.index), []).extend(delta.token_ids)
        if output.prompt_logprobs is not None:
            prompt_logprobs.append(output.request_id)
        if output.finished:
            finished.append(output.request_id)
            assert output.usage.completion_tokens == sum(len(t) for key, t in tokens.items() if key[0] == output.request_id)
    assert loaded.engine.scheduler.num_preemptions > 0
    assert sorted(finished) == [str(i) for i in range(len(MIXED))]
    assert sorted(prompt_logprobs) == ["2", "4"]
    expected = generate(fake_engine(num_blocks=(500,)), PROMPTS, MIXED)
    for i, result in enumerate(expected):
        for completion in result.outputs:
            assert tuple(tokens[str(i), completion.index]) == completion.token_ids


def test_a_nan_ends_its_request_alone() -> None:
    """D-SAMP-2: NaN logits are an error of that request, never a token."""
    loaded = fake_engine(nan_token=7)
    params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
    good, bad = generate(loaded, ["hi", [65, 7]], params)
    assert bad.outputs[0].finish_reason == "error"
    assert bad.error is not None and "not a number" in bad.error
    assert good == one(fake_engine(), "hi", params)
    both = one(loaded, [65, 7], replace(params, n=3, prompt_logprobs=1))
    assert [o.finish_reason for o in both.outputs] == ["error"] * 3


def test_a_failing_step_ends_only_the_guilty() -> None:
    params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True, allowed_token_ids=tuple(range(60, 90)), prompt_logprobs=0)
    expected = one(fake_engine(), "hi there", params)
    loaded = fake_engine(failing_token=7)
    results = generate(loaded, ["hi there", [65, 7], "hi there"], params)
    assert results[0] == expected and results[2] == expected
    assert results[1].outputs[0].finish_reason == "error"
    assert results[1].error is not None and "token 7 was told to fail" in results[1].error


@pytest.mark.parametrize("num_prompts", [1, 2, 3])
def test_a_step_that_fails_once_is_run_again(num_prompts: int) -> None:
    params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True, logprobs=1)
    prompts = PROMPTS[:num_prompts]
    loaded = fake_engine(failing_steps=frozenset({1, 9}))
    assert generate(loaded, prompts, params) == generate(fake_engine(), prompts, params)


def test_closing_the_offline_iterator_frees_everything() -> None:
    loaded = fake_engine()
    outputs = run_offline(loaded, [_request(str(i), loaded, "hi", MIXED[0]) for i in range(3)])
    next(outputs)
    assert loaded.engine.scheduler.kv.usage > 0
    outputs.close()
    assert loaded.engine.scheduler.kv.usage == 0
    assert not loaded.engine.has_work
    assert loaded.metrics.request_success["abort"] == 3


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ([1, 2, 3], GREEDY, r"prompts\[0\] is 1; each has to be text, or a list of token ids"),
        (["x", None], GREEDY, r"prompts\[1\] is None"),
        (["x"], {"temperature": 0}, "has to be a SamplingParams"),
        (["x"], [{"temperature": 0}], "has to be a SamplingParams"),
    ],
)
def test_arguments_of_the_wrong_type_are_named(prompts: Any, params: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        LLM(fake_engine()).generate(prompts, params)


@pytest.mark.parametrize("field", [{"temperature": "hot"}, {"n": "2"}, {"max_tokens": 1.5}, {"seed": "x"}, {"top_k": None}])
def test_sampling_parameters_of_the_wrong_type_are_named(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"^{next(iter(field))} is .*number"):
        SamplingParams(**field)


def test_chat_uses_the_template() -> None:
    loaded = fake_engine(script="Hello")
    result = LLM(loaded).chat([{"role": "user", "content": "hi"}], GREEDY)[0]
    assert result.text == "Hello"
    assert result.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(TemplateRefused, match="no chat template"):
        LLM(fake_engine(chat_template=None)).chat([{"role": "user", "content": "hi"}])


def test_a_character_over_several_tokens_comes_whole() -> None:
    """D-TOK-1: no U+FFFD while a character may still be completed, in a stream."""
    loaded = fake_engine(script="🦜漢字é")
    params = replace(GREEDY, max_tokens=None)
    pieces = [d.text for o in run_offline(loaded, [_request("a", loaded, "hi", params)]) for d in o.deltas]
    assert "".join(pieces) == "🦜漢字é"
    assert all("\ufffd" not in piece for piece in pieces)
    cut = one(loaded, "hi", replace(GREEDY, max_tokens=2))
    assert cut.text == "\ufffd"


def _request(name: str, loaded: LoadedEngine, prompt: str, params: SamplingParams) -> GenerateRequest:
    return GenerateRequest(name, tuple(loaded.tokenizer.encode(prompt)), params)
