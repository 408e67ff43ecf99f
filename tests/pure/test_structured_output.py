"""Requests with a grammar, on the fake backend: its noise picks any token that the grammar lets through."""

import json
import re

import jsonschema
import pytest

from support.fake_model import fake_engine
from support.schemas import BEYOND, schemas
from tuili.backends.fake import FakeExecutable
from tuili.config.options import SpeculativeConfig
from tuili.engine.build import LoadedEngine
from tuili.engine.llm import LLM, GenerationResult
from tuili.errors import InvalidRequest
from tuili.types import SamplingParams, StructuredOutputs

#: D-SO-3: enums of mixed types behind references.
MOODS = {
    "type": "array",
    "minItems": 2,
    "maxItems": 2,
    "items": {"$ref": "#/$defs/T"},
    "$defs": {
        "T": {
            "type": "object",
            "required": ["who", "mood"],
            "additionalProperties": False,
            "properties": {"who": {"$ref": "#/$defs/W"}, "mood": {"$ref": "#/$defs/M"}},
        },
        "W": {"enum": ["Ann", "Bob"]},
        "M": {"enum": ["calm", 3, None, True]},
    },
}
WORDS = StructuredOutputs(json={"type": "array", "items": {"enum": ["hello", "hell"]}, "minItems": 12, "maxItems": 16})


def wanted(outputs: StructuredOutputs | None, seed: int = 0, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=300, seed=seed, structured_outputs=outputs, **fields)  # type: ignore[arg-type]


def run(loaded: LoadedEngine, params: list[SamplingParams]) -> list[GenerationResult]:
    results = LLM(loaded).generate([f"prompt {i % 3}" for i in range(len(params))], params)
    loaded.engine.scheduler.kv.check()
    assert not loaded.engine.has_work
    return results


def tokens(results: list[GenerationResult]) -> list[list[tuple[int, ...]]]:
    return [[output.token_ids for output in result.outputs] for result in results]


def num_steps(loaded: LoadedEngine) -> int:
    executable = loaded.engine._runner._executable  # type: ignore[attr-defined]
    assert isinstance(executable, FakeExecutable)
    return executable.num_steps


def assert_moods(text: str) -> None:
    value = json.loads(text)
    assert len(value) == 2
    for item in value:
        assert item.keys() == {"who", "mood"}
        assert item["who"] in ("Ann", "Bob")
        assert item["mood"] in ("calm", None) or item["mood"] is True or (item["mood"] == 3 and item["mood"] is not True)


@pytest.mark.parametrize("logprobs", [None, 2])
def test_every_reply_conforms(logprobs: int | None) -> None:
    params = [wanted(StructuredOutputs(json=MOODS), seed, temperature=1.2, n=2, logprobs=logprobs) for seed in range(1, 11)]
    loaded = fake_engine(max_num_seqs=6)
    for result in run(loaded, params):
        assert result.usage.completion_tokens == sum(len(output.token_ids) for output in result.outputs)
        for output in result.outputs:
            assert output.finish_reason == "stop"
            assert_moods(output.text)
            assert len(output.logprobs) == (0 if logprobs is None else len(output.token_ids))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_blank_runs_are_short_and_a_cut_is_said(temperature: float) -> None:
    """D-SO-2."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    params = [wanted(StructuredOutputs(json=schema), seed, temperature=temperature) for seed in range(20)]
    for result in run(fake_engine(), params):
        assert result.outputs[0].finish_reason == "stop"
        assert set(json.loads(result.text)) == {"a"}
        assert not re.search(r"\s{17}", result.text)
    cut = SamplingParams(max_tokens=5, seed=1, structured_outputs=StructuredOutputs(json=MOODS), temperature=temperature)
    output = run(fake_engine(), [cut])[0].outputs[0]
    assert (output.finish_reason, len(output.token_ids)) == ("length", 5)


def test_forced_tokens_save_steps() -> None:
    schema = {
        "type": "object",
        "properties": {"customer_identifier": {"type": "boolean"}, "shipping_address": {"type": "boolean"}},
        "required": ["customer_identifier", "shipping_address"],
        "additionalProperties": False,
    }
    jumping, plain = fake_engine(), fake_engine()
    results = run(jumping, [wanted(StructuredOutputs(json=schema), seed) for seed in range(8)])
    run(plain, [wanted(StructuredOutputs(json=schema), seed, logprobs=0) for seed in range(8)])
    assert all(set(json.loads(result.text)) == {"customer_identifier", "shipping_address"} for result in results)
    assert num_steps(jumping) < 0.75 * num_steps(plain)


def mixed() -> list[SamplingParams]:
    kinds: list[StructuredOutputs | None] = [WORDS, None, StructuredOutputs(regex="[ab]{30,40}"), StructuredOutputs(json=MOODS)]
    return [
        SamplingParams(max_tokens=60, seed=i, structured_outputs=kinds[i % 4], logprobs=1 if i % 3 == 0 else None)
        for i in range(12)
    ]


def test_neighbours_chunks_and_preemptions_change_nothing() -> None:
    alone = [run(fake_engine(), [params]) for params in mixed()]
    expected = tokens([LLM(fake_engine()).generate([f"prompt {i % 3}"], p)[0] for i, p in enumerate(mixed())])
    assert len(alone) == len(expected)
    assert tokens(run(fake_engine(), mixed())) == expected
    tight = fake_engine(num_blocks=(14,), max_num_batched_tokens=8, max_num_seqs=6)
    assert tokens(run(tight, mixed())) == expected
    assert tight.engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("guesses", [1, 4, 8])
def test_prompt_lookup_changes_nothing(guesses: int) -> None:
    """D-SPEC-1."""
    params = [wanted(WORDS, seed, temperature=0.3, logprobs=0 if seed % 2 else None) for seed in range(6)] + mixed()
    config = SpeculativeConfig.read({"method": "ngram", "num_speculative_tokens": guesses})
    guessing = fake_engine(speculative_config=config)
    assert tokens(run(guessing, params)) == tokens(run(fake_engine(), params))
    assert guessing.engine.scheduler.draft_stats.num_accepted_tokens > 0


def test_a_grammar_that_gets_stuck_ends_its_request_alone() -> None:
    loaded = fake_engine()
    stuck = wanted(StructuredOutputs(choice=["yes"]), allowed_token_ids=(ord("x"),))
    results = run(loaded, [stuck, wanted(StructuredOutputs(choice=["no"]))])
    assert results[0].outputs[0].finish_reason == "error"
    assert results[0].error is not None
    assert (results[1].text, results[1].outputs[0].finish_reason) == ("no", "stop")


def test_a_fulfilled_grammar_ends_the_text_even_where_the_end_is_ignored() -> None:
    result = run(fake_engine(), [wanted(StructuredOutputs(choice=["yes", "no"]), ignore_eos=True)])[0]
    assert result.text in ("yes", "no")
    assert result.outputs[0].finish_reason == "stop"


def test_stop_strings_hold_inside_forced_text() -> None:
    result = run(fake_engine(), [wanted(StructuredOutputs(choice=["abcdefgh"]), stop=("ef",))])[0]
    assert (result.text, result.outputs[0].stop_reason) == ("abcd", "ef")


def test_a_bad_grammar_is_refused_before_anything_runs() -> None:
    loaded = fake_engine()
    with pytest.raises(InvalidRequest, match="unclosed character class"):
        LLM(loaded).generate("x", wanted(StructuredOutputs(regex="[")))
    assert not loaded.engine.has_work


def test_hundreds_of_schemas() -> None:
    """Whatever the noise picks validates, formats included; what cannot be constrained is refused by its keyword."""
    loaded = fake_engine(max_num_seqs=32, num_blocks=(2000,))
    usable: list[tuple[dict[str, object], StructuredOutputs]] = []
    refused: list[str] = []
    for schema in schemas():
        outputs = StructuredOutputs(json=schema)
        try:
            loaded.grammars.compile(outputs.spec)
        except InvalidRequest as error:
            refused.append(str(error))
        else:
            usable.append((schema, outputs))
    assert len(usable) >= 300
    assert len(refused) == len(BEYOND)
    assert all(any(keyword in message for message in refused) for keyword in BEYOND)
    results = run(loaded, [wanted(outputs, seed) for seed, (_, outputs) in enumerate(usable)])
    ended = [(schema, r.text) for (schema, _), r in zip(usable, results, strict=True) if r.outputs[0].finish_reason == "stop"]
    assert len(ended) >= 0.9 * len(usable)
    for schema, text in ended:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
