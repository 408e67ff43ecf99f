"""OpenAI's request bodies: what is accepted, what is refused, and that the refusal names the field."""

from typing import Any

import pytest

from tuili.dialects.openai.chat import chat_messages, template_arguments
from tuili.dialects.openai.completions import prompts
from tuili.dialects.openai.params import chat_params, completion_params
from tuili.dialects.openai.schema import ChatCompletionBody, CompletionBody, ignored_fields, parse_body
from tuili.errors import InvalidRequest
from tuili.types import StructuredOutputs

CONTEXT = 4096


def chat(**fields: Any) -> ChatCompletionBody:
    return parse_body({"messages": [{"role": "user", "content": "hi"}], **fields}, ChatCompletionBody)


def completion(**fields: Any) -> CompletionBody:
    return parse_body({"prompt": "hi", **fields}, CompletionBody)


def refused_field(make: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        make()
    return caught.value.field


def test_defaults_are_openais() -> None:
    params = completion_params(completion(), CONTEXT)
    assert (params.max_tokens, params.n, params.temperature, params.top_p, params.logprobs) == (16, 1, 1.0, 1.0, None)
    assert chat_params(chat(), CONTEXT).max_tokens is None


def test_null_means_the_default() -> None:
    names = [name for name in CompletionBody.model_fields if name != "prompt"]
    assert completion_params(completion(**dict.fromkeys(names)), CONTEXT) == completion_params(completion(), CONTEXT)
    names = [name for name in ChatCompletionBody.model_fields if name != "messages"]
    assert chat_params(chat(**dict.fromkeys(names)), CONTEXT) == chat_params(chat(), CONTEXT)


def test_every_sampling_field_arrives() -> None:
    sent: dict[str, Any] = dict(
        n=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        seed=7,
        min_tokens=3,
        max_tokens=9,
        include_stop_str_in_output=True,
        ignore_eos=True,
        skip_special_tokens=False,
    )
    params = completion_params(
        completion(**sent, logit_bias={"5": 1.5}, allowed_token_ids=[5, 6], stop="x", stop_token_ids=[9], logprobs=2), CONTEXT
    )
    assert {name: getattr(params, name) for name in sent} == sent
    assert params.logit_bias == {5: 1.5}
    assert (params.allowed_token_ids, params.stop, params.stop_token_ids, params.logprobs) == ((5, 6), ("x",), (9,), 2)


def test_max_completion_tokens_wins() -> None:
    """[D-SAMP-3]"""
    assert chat_params(chat(max_tokens=5, max_completion_tokens=7), CONTEXT).max_tokens == 7
    assert chat_params(chat(max_tokens=5, max_completion_tokens=None), CONTEXT).max_tokens == 5
    assert refused_field(lambda: chat_params(chat(max_completion_tokens=-1), CONTEXT)) == "max_completion_tokens"


def test_too_large_a_limit_is_capped() -> None:
    """[D-SAMP-3]"""
    assert completion_params(completion(max_tokens=10**30), CONTEXT).max_tokens == CONTEXT
    assert completion_params(completion(max_tokens=0, echo=True, logprobs=1), CONTEXT).max_tokens == 0


@pytest.mark.parametrize("stop", [None, [], ["a", "b"], "a"])
def test_stops_that_are_fine(stop: Any) -> None:
    """[D-STOP-2] null and [] mean none."""
    expected = (stop,) if isinstance(stop, str) else tuple(stop or ())
    assert completion_params(completion(stop=stop), CONTEXT).stop == expected


@pytest.mark.parametrize("stop", ["", [""], ["", "ZZZ"], ["x"] * 65, "x" * 5000, 5, [5]])
def test_stops_that_are_refused(stop: Any) -> None:
    """[D-STOP-2] an empty stop string is refused on both endpoints alike."""
    assert str(refused_field(lambda: completion_params(completion(stop=stop), CONTEXT))).startswith("stop")
    assert str(refused_field(lambda: chat_params(chat(stop=stop), CONTEXT))).startswith("stop")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"top_p": 2}, "top_p"),
        ({"logit_bias": {"abc": 5}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"seed": "x"}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {}, "stream": False}, "stream_options"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"truncate_prompt_tokens": 10}, "truncate_prompt_tokens"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], field: str) -> None:
    assert refused_field(lambda: completion_params(completion(**fields), CONTEXT)) == field
    assert refused_field(lambda: chat_params(chat(**fields), CONTEXT)) == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [{"type": "function", "function": {"name": "add"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "add"}]}, "functions"),
        ({"function_call": {"name": "add"}}, "function_call"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"echo": True}, "echo"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
    ],
)
def test_chat_refuses_by_name(fields: dict[str, Any], field: str) -> None:
    assert refused_field(lambda: chat_params(chat(**fields), CONTEXT)) == field


@pytest.mark.parametrize(
    ("fields", "field"), [({"suffix": "end"}, "suffix"), ({"best_of": 2}, "best_of"), ({"logprobs": True}, "logprobs")]
)
def test_completions_refuse_by_name(fields: dict[str, Any], field: str) -> None:
    assert refused_field(lambda: completion(**fields)) == field


def test_harmless_forms_of_refused_fields_pass() -> None:
    chat(
        tools=[],
        tool_choice="none",
        functions=None,
        response_format={"type": "text"},
        modalities=["text"],
        parallel_tool_calls=True,
    )
    chat(tools=[{"type": "function", "function": {"name": "add"}}], tool_choice="none")
    completion(best_of=1, suffix=None, use_beam_search=False)


def test_unknown_fields_are_reported_with_the_nearest_name() -> None:
    """[D-OPS-1] an unknown field is accepted, and said to be ignored."""
    body = chat(temperatur=0.5, frobnicate=1, user="me", store=False, nothing=None)
    assert ignored_fields(body) == ["temperatur (did you mean temperature?)", "frobnicate"]
    assert ignored_fields(chat(store=True)) == ["store"]


@pytest.mark.parametrize("document", [[], None, "s", 5, True])
def test_a_body_has_to_be_an_object(document: Any) -> None:
    """[D-OPS-1]"""
    with pytest.raises(InvalidRequest, match="has to be an object"):
        parse_body(document, ChatCompletionBody)


def test_several_errors_are_said_at_once_and_bounded() -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(temperature="a", n="b", seed="c", top_p="d", prompt="x" * 10_000)
    assert "temperature" in str(caught.value) and "and 1 more" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_messages_become_plain_strings() -> None:
    body = chat(
        messages=[
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "bob"},
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": None},
        ]
    )
    assert chat_messages(body) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a\nb", "name": "bob"},
        {"role": "assistant", "content": ""},
    ]
    assert ignored_fields(body) == []


@pytest.mark.parametrize(
    "assistant",
    [
        {"content": None},
        {},
        {"content": ""},
        {"content": None, "arguments": "null"},
        {"content": None, "arguments": ""},
    ],
)
def test_tool_calls_in_the_history_are_kept_in_order(assistant: dict[str, Any]) -> None:
    """[D-TPL-1] null or absent content is empty text; the call and its result are kept."""
    arguments = assistant.pop("arguments", '{"a":2,"b":2}')
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    body = chat(
        messages=[
            {"role": "user", "content": "What is 2+2?"},
            {"role": "assistant", "tool_calls": [call], **assistant},
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
        ]
    )
    _, turn, result = chat_messages(body)
    assert turn == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert result == {"role": "tool", "content": "4", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": None}, "messages.0.content"),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "wizard", "content": "x"}, "messages.0.role"),
        ({"content": "x"}, "messages.0.role"),
        ({"role": "user", "content": 5}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]},
            "messages.0.content.0",
        ),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages.0.content.0"),
    ],
)
def test_bad_messages_are_named(message: dict[str, Any], field: str) -> None:
    assert refused_field(lambda: chat_messages(chat(messages=[message]))) == field


def test_no_messages() -> None:
    assert refused_field(lambda: chat_messages(chat(messages=[]))) == "messages"


@pytest.mark.parametrize(
    "name", ["messages", "tools", "tokenize", "chat_template", "add_generation_prompt", "raise_exception", "__x", "a b"]
)
def test_template_arguments_cannot_replace_the_conversation(name: str) -> None:
    """[D-TPL-3] chat_template and the conversation cannot be set through chat_template_kwargs."""
    assert refused_field(lambda: template_arguments(chat(chat_template_kwargs={name: 1}))) == "chat_template_kwargs"


def test_template_arguments_pass() -> None:
    assert template_arguments(chat(chat_template_kwargs={"enable_thinking": False})) == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("given", "expected"),
    [("a", ["a"]), ("", [""]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_prompts(given: Any, expected: Any) -> None:
    assert prompts(completion(prompt=given)) == expected


@pytest.mark.parametrize("given", [None, [], [[]], [1, "a"], ["a", [1]], [True], [1.5], {"a": 1}, 5, [[1], [True]]])
def test_bad_prompts(given: Any) -> None:
    assert refused_field(lambda: prompts(completion(prompt=given))) == "prompt"


def test_echo_with_logprobs_asks_for_the_prompts_too() -> None:
    params = completion_params(completion(echo=True, logprobs=3), CONTEXT)
    assert (params.logprobs, params.prompt_logprobs) == (3, 3)
    assert completion_params(completion(echo=True), CONTEXT).prompt_logprobs is None


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
            StructuredOutputs(json=SCHEMA),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputs(json=SCHEMA)),
        ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs(choice=["a", "b"])),
        ({"structured_outputs": {"json_object": True, "regex": None}}, StructuredOutputs(json_object=True)),
        ({"guided_json": SCHEMA}, StructuredOutputs(json=SCHEMA)),
        ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
        ({"guided_choice": ["a"]}, StructuredOutputs(choice=["a"])),
        ({"guided_grammar": "root ::= x"}, StructuredOutputs(grammar="root ::= x")),
    ],
)
def test_every_field_for_structured_output_is_understood(fields: dict[str, Any], expected: StructuredOutputs | None) -> None:
    assert completion_params(completion(**fields), CONTEXT).structured_outputs == expected
