"""Grammars: what can be compiled, what is refused and how, and how a state follows tokens."""

import json

import numpy as np
import pytest

from support.fake_model import small_tokenizer
from tuili.errors import InvalidRequest
from tuili.text.grammar.compiler import Grammar, GrammarCompiler
from tuili.text.grammar.state import GrammarState, MaskWriter
from tuili.types import GrammarSpec, StructuredOutputs

TOKENIZER = small_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/N",
    "$defs": {
        "N": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/N"}}},
            "required": ["children"],
            "additionalProperties": False,
        }
    },
}


def compiled(**outputs: object) -> Grammar:
    grammar = COMPILER.compile(StructuredOutputs(**outputs).spec)  # type: ignore[arg-type]
    assert grammar is not None
    return grammar


def matches(grammar: Grammar, text: str) -> bool:
    state = grammar.start()
    return all(state.accept(i) for i in TOKENIZER.encode(text)) and state.is_accepting


def allowed(state: GrammarState, guesses: list[int] | None = None) -> list[set[int]]:
    guesses = guesses or []
    masks = np.full((1 + len(guesses), state.num_words), 7, np.uint32)
    MaskWriter().write([(state, 0, guesses)], masks)
    return [set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()) for row in masks]


@pytest.mark.parametrize("text", ['{"name":"Jo","age":1}', '{"name": "Jo", "age": 1}', '{\n  "name": "é",\n  "age": -7\n}'])
def test_compact_spaced_and_indented_json_are_legal(text: str) -> None:
    assert matches(compiled(json=PERSON), text)
    assert matches(compiled(json_object=True), text)


@pytest.mark.parametrize(
    "text", ['{"name":  "Jo","age":1}', '{\n\n"name":"Jo","age":1}', '{"name":"Jo"}', '{"name":"Jo","age":1} ', " {"]
)
def test_blank_runs_and_what_the_schema_forbids_are_not(text: str) -> None:
    assert not matches(compiled(json=PERSON), text)


@pytest.mark.parametrize(
    ("outputs", "yes", "no"),
    [
        ({"regex": "(a+)+$"}, "aaa", "b"),
        ({"regex": "^a\\\\!$"}, "a\\!", "a!"),
        ({"regex": "[0-9]{2}-x?"}, "12-", "1-"),
        ({"choice": ["yes", 'n"o', "é\\"]}, 'n"o', "maybe"),
        ({"choice": ["<|im_end|>"]}, "<|im_end|", "x"),
        ({"grammar": 'root ::= "a" | "b" root'}, "bba", "c"),
        ({"grammar": 'start: "a"+'}, "aa", "b"),
        ({"json": TREE}, '{"children":[{"children":[]}]}', '{"children":[1]}'),
        ({"json": {"enum": [f"value {i}" for i in range(20000)]}}, '"value 19999"', '"value 20000"'),
        ({"json": True}, "[1]", "x"),
    ],
)
def test_every_kind_is_followed(outputs: dict[str, object], yes: str, no: str) -> None:
    grammar = compiled(**outputs)
    state = grammar.start()
    assert state.num_valid(TOKENIZER.encode(yes, parse_control=False)) == len(TOKENIZER.encode(yes, parse_control=False))
    assert not matches(grammar, no)


def _deep(levels: int) -> str:
    return '{"type":"object","properties":{"a":' * levels + '{"type":"null"}' + "}}" * levels


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"regex": "["}, "unclosed character class"),
        ({"regex": "(?P<x"}, "unclosed capture group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "(a)\\1"}, "backreferences"),
        ({"json": {"type": "thing"}}, "thing"),
        ({"json": {"properties": 5}}, "properties"),
        ({"json": {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}}, "$ref"),
        ({"json": _deep(2000)}, "recursion limit"),
        ({"json": "not json"}, "line 1"),
        ({"json": "[1]"}, "object"),
        ({"json": {"not": {}}}, "not"),
        ({"json": False}, "not"),
        ({"json": {"uniqueItems": True}}, "uniqueItems"),
        ({"json": {"if": {}, "then": {}}}, "if"),
        ({"json": {"type": "string", "format": "zork"}}, "zork"),
        ({"json": {"type": "string", "pattern": "["}}, "unclosed character class"),
        ({"json": {"x-guidance": {"lenient": True}, "not": {}}}, "not"),
        ({"json": {"$ref": "http://example.com/x"}}, "http://example.com/x"),
        ({"grammar": "start: ["}, "grammar"),
        ({"grammar": "root ::= x"}, "x"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(outputs: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiled(**outputs)
    assert said in str(caught.value)
    assert caught.value.field == "structured_outputs"
    assert "<state>" not in str(caught.value)


def test_the_same_grammar_is_compiled_once() -> None:
    spec = GrammarSpec("regex", "abc")
    assert COMPILER.compile(spec) is COMPILER.compile(spec)


async def test_compiling_does_not_block_the_event_loop() -> None:
    assert await COMPILER.compile_async(GrammarSpec("regex", "abcd")) is COMPILER.compile(GrammarSpec("regex", "abcd"))


@pytest.mark.parametrize(
    "bad", [{}, {"regex": "a", "json_object": True}, {"choice": []}, {"choice": "ab"}, {"regex": 5}, {"json": 5}]
)
def test_exactly_one_constraint_of_the_right_kind(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        StructuredOutputs(**bad)  # type: ignore[arg-type]


def test_only_the_end_may_follow_a_fulfilled_grammar() -> None:
    state = compiled(regex="ab").start()
    for token_id in TOKENIZER.encode("ab"):
        assert state.accept(token_id)
    assert allowed(state) == [set(TOKENIZER.eos_token_ids)]
    assert state.forced() == []


def test_masks_behind_guesses_are_those_of_plain_steps_and_the_state_does_not_move() -> None:
    state = compiled(json=PERSON).start()
    guesses = TOKENIZER.encode('{"na')
    masks = allowed(state, guesses)
    for token_id, mask in zip(guesses, masks, strict=False):
        assert allowed(state) == [mask]
        assert token_id in mask
        assert state.accept(token_id)
    assert allowed(state) == [masks[-1]]


def test_sequences_move_apart() -> None:
    grammar = compiled(choice=["ab", "cd"])
    first, second = grammar.start(), grammar.start()
    assert first.accept(ord("a"))
    assert second.num_valid([ord("c")]) == 1
    assert first.num_valid([ord("c")]) == 0
    assert bytes(first.forced()) == b"b"


def test_a_forbidden_token_is_an_error_in_one_line() -> None:
    state = compiled(regex="ab").start()
    assert not state.accept(ord("x"))
    assert state.error is not None
    assert "\n" not in state.error
    assert allowed(state) == [set()]


def test_forced_tokens_are_the_texts_own() -> None:
    state = compiled(json=PERSON).start()
    for token_id in TOKENIZER.encode('{"n'):
        assert state.accept(token_id)
    assert TOKENIZER.decode(state.forced()).startswith("ame")


def test_schemas_as_text_and_as_mapping_are_the_same() -> None:
    assert StructuredOutputs(json=json.dumps(PERSON)).spec == StructuredOutputs(json=PERSON).spec
