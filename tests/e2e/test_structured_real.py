"""Structured output with a real model: what comes out validates, whatever the model would rather say."""

import json
import re
from collections.abc import Iterator

import jsonschema
import pytest

from support import models
from support.schemas import BEYOND, schemas
from tuili.engine.llm import LLM
from tuili.errors import InvalidRequest
from tuili.types import SamplingParams, StructuredOutputs

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(models.path("smollm2:135m"), max_model_len=1024, max_num_seqs=16) as llm:
        yield llm


def params(outputs: StructuredOutputs, seed: int, **fields: object) -> SamplingParams:
    return SamplingParams(seed=seed, structured_outputs=outputs, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "outputs",
    [
        StructuredOutputs(json_object=True),
        StructuredOutputs(
            json={
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "ok": {"type": "boolean"}},
                "required": ["name", "age", "ok"],
            }
        ),
    ],
)
def test_unasked_json_is_bounded_and_parses(llm: LLM, outputs: StructuredOutputs, temperature: float) -> None:
    """D-SO-2: on a prompt that does not ask for JSON."""
    asked = [params(outputs, seed, temperature=temperature, max_tokens=400) for seed in range(20 if temperature else 1)]
    for result in llm.generate(["The weather today is"] * len(asked), asked):
        outside_strings = re.sub(r'"(\\.|[^"\\])*"?', '""', result.text)
        assert not re.search(r"\s{17}", outside_strings)
        if result.outputs[0].finish_reason == "stop":
            assert isinstance(json.loads(result.text), dict)
    cut = llm.generate("The weather today is", params(outputs, 1, temperature=temperature, max_tokens=5))[0]
    assert cut.outputs[0].finish_reason == "length" or json.loads(cut.text) == {}


def test_enums_behind_references(llm: LLM) -> None:
    """D-SO-3."""
    item = {
        "type": "object",
        "required": ["who", "mood"],
        "additionalProperties": False,
        "properties": {"who": {"$ref": "#/$defs/W"}, "mood": {"$ref": "#/$defs/M"}},
    }
    schema = {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": {"$ref": "#/$defs/T"},
        "$defs": {"T": item, "W": {"enum": ["Ann", "Bob"]}, "M": {"enum": ["calm", 3, None, True]}},
    }
    asked = [params(StructuredOutputs(json=schema), seed, temperature=1.2, max_tokens=200) for seed in range(1, 11)]
    for result in llm.generate(["How are they?"] * 10, asked):
        assert result.outputs[0].finish_reason == "stop"
        jsonschema.validate(json.loads(result.text), schema)


@pytest.mark.slow
def test_hundreds_of_schemas(llm: LLM) -> None:
    """At temperature 1 most replies end, and each that does validates; few schemas are refused, each by its keyword."""
    usable = []
    refused: list[str] = []
    for schema in schemas():
        outputs = StructuredOutputs(json=schema)
        try:
            llm.loaded.grammars.compile(outputs.spec)
        except InvalidRequest as error:
            refused.append(str(error))
        else:
            usable.append((schema, outputs))
    assert len(usable) + len(refused) >= 300
    assert len(refused) <= 0.2 * (len(usable) + len(refused))
    assert all(any(keyword in message for message in refused) for keyword in BEYOND)
    asked = [params(outputs, seed, temperature=1.0, max_tokens=200) for seed, (_, outputs) in enumerate(usable)]
    results = llm.generate(["Give me an example as JSON:"] * len(asked), asked)
    ended = [(schema, r.text) for (schema, _), r in zip(usable, results, strict=True) if r.outputs[0].finish_reason == "stop"]
    assert len(ended) >= 0.6 * len(asked)
    for schema, text in ended:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
