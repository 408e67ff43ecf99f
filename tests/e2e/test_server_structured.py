"""Structured output over HTTP: every field that asks for it, every refusal, with OpenAI's own client against a fake model."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.fake_model import fake_engine
from support.server import MODEL, RunningServer, running_server
from tuili.text.grammar import compiler

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "boolean"}, "mood": {"enum": ["calm", 3, None]}},
    "required": ["answer", "mood"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(fake_engine(max_model_len=512)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return server.openai()


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 200, "seed": 1, **fields}
    return client.chat.completions.create(model=MODEL, **fields)


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
        {"extra_body": {"guided_json": SCHEMA}},
    ],
)
def test_a_schema_is_kept_whole_and_streamed(client: openai.OpenAI, fields: dict[str, Any], logprobs: bool) -> None:
    whole = chat(client, n=2, logprobs=logprobs, **fields)
    chunks = list(chat(client, n=2, logprobs=logprobs, stream=True, **fields))
    for choice in whole.choices:
        value = json.loads(choice.message.content)
        assert value.keys() == {"answer", "mood"}
        assert isinstance(value["answer"], bool) and value["mood"] in ("calm", 3, None)
        assert choice.finish_reason == "stop"
        pieces = [c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(pieces) == choice.message.content


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"guided_choice": ["yes", "no"]}, ("yes", "no")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ("yes", "no")),
        ({"guided_regex": "ab|cd"}, ("ab", "cd")),
        ({"guided_grammar": 'root ::= "ab" | "cd"'}, ("ab", "cd")),
    ],
)
def test_completions_keep_to_every_kind(client: openai.OpenAI, fields: dict[str, Any], texts: tuple[str, ...]) -> None:
    reply = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=20, extra_body=fields)
    assert all(choice.text in texts and choice.finish_reason == "stop" for choice in reply.choices)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"guided_regex": "["}, "guided_regex", "unclosed"),
        ({"guided_json": {"type": "thing"}}, "guided_json", "thing"),
        ({"guided_json": {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}}, "guided_json", "$ref"),
        ({"structured_outputs": {"json": {"uniqueItems": True}}}, "structured_outputs", "uniqueItems"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "structural_tag"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format",
            "not",
        ),
    ],
)
def test_what_cannot_be_used_is_a_400_for_that_request_alone(
    server: RunningServer, client: openai.OpenAI, fields: dict[str, Any], param: str, said: str
) -> None:
    """[D-SO-1] never an unconstrained 200."""
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body=fields)
    assert caught.value.param == param
    assert said in str(caught.value)
    assert server.request("GET", "/health").status == 200


def test_health_answers_while_a_grammar_is_compiled(server: RunningServer, client: openai.OpenAI) -> None:
    """[D-SO-1] an enum of 20,000 strings is legal."""
    values = [f"value {i}" for i in range(20_000)]
    replies: list[Any] = []
    ask = threading.Thread(target=lambda: replies.append(chat(client, extra_body={"guided_json": {"enum": values}})))
    ask.start()
    while ask.is_alive():
        assert server.request("GET", "/health").status == 200
    ask.join()
    assert json.loads(replies[0].choices[0].message.content) in values


def test_a_grammar_that_takes_too_long_is_refused_and_others_go_on(
    server: RunningServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D-SO-1] what cannot be stopped keeps one of the threads; the other serves everybody else."""
    plain, released = compiler._matcher, threading.Event()

    def matcher(spec: Any, vocabulary: Any) -> Any:
        if spec.text == "endless":
            released.wait()
        return plain(spec, vocabulary)

    monkeypatch.setattr(compiler, "_matcher", matcher)
    try:
        with monkeypatch.context() as patch, pytest.raises(openai.BadRequestError) as caught:
            patch.setattr(compiler, "SECONDS_TO_COMPILE", 0.01)
            chat(client, extra_body={"guided_regex": "endless"})
        assert (caught.value.param, "not compiled within" in str(caught.value)) == ("guided_regex", True)
        assert chat(client, extra_body={"guided_regex": "soon|later"}).choices[0].message.content in ("soon", "later")
    finally:
        released.set()
