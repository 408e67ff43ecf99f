"""The contract of the OpenAI routes, checked with OpenAI's own client, unmodified, against a real server and a fake model."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.fake_model import fake_engine
from support.server import MODEL, RunningServer, running_server

CONTEXT = 256


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(fake_engine(max_model_len=CONTEXT)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return server.openai()


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 40, "seed": 1, **fields}
    return client.chat.completions.create(model=MODEL, **fields)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": "Once", "max_tokens": 40, "seed": 1, **fields})


def counts(usage: Any) -> tuple[int, int, int]:
    """Without where the prompt's tokens came from: the second time they are in the prefix cache."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody/else")


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0}, {"n": 3}, {"logprobs": True, "top_logprobs": 3}, {"stop": ["e", "7"]}]
)
def test_chat_stream_equals_whole(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    """[D-STRM-1] text, reasons, log-probabilities and totals."""
    whole = chat(client, **fields)
    chunks = list(chat(client, **fields, stream=True, stream_options={"include_usage": True}))
    *chunks, last = chunks
    assert last.choices == [] and counts(last.usage) == counts(whole.usage) and all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert [part.delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
        assert all(part.delta.content != "" for part in parts[1:])
        if choice.logprobs:
            assert [e for part in parts if part.logprobs for e in part.logprobs.content] == choice.logprobs.content
            assert len(choice.logprobs.content) == whole.usage.completion_tokens
            # Logits that are only padding can be among the three best, and are not shown.
            assert all(1 <= len(entry.top_logprobs) <= 3 for entry in choice.logprobs.content)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_only_when_asked(server: RunningServer, options: Any) -> None:
    """[D-STRM-1] with exactly one [DONE], at the end."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "stream": True, "stream_options": options}
    reply = server.request("POST", "/v1/chat/completions", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *chunks, done = reply.events
    assert done == "[DONE]" and "[DONE]" not in chunks
    assert not any("usage" in chunk for chunk in chunks)
    assert all("finish_reason" in choice for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 2}, {"echo": True}, {"echo": True, "logprobs": 2}, {"stop": "e"}])
@pytest.mark.parametrize("prompt", ["Once", ["Once", "upon a time"], [5, 6, 7], [[5, 6, 7], [8, 9]]], ids=repr)
def test_completion_stream_equals_whole(client: openai.OpenAI, prompt: Any, fields: dict[str, Any]) -> None:
    fields = {**fields, "prompt": prompt}
    whole = complete(client, **fields)
    num_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert [choice.index for choice in whole.choices] == list(range(num_prompts * fields.get("n", 1)))
    *chunks, last = complete(client, **fields, stream=True, stream_options={"include_usage": True})
    assert counts(last.usage) == counts(whole.usage)
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
        if choice.logprobs:
            for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
                assert [v for p in parts if p.logprobs for v in getattr(p.logprobs, name)] == getattr(choice.logprobs, name)


def test_several_prompts_are_answered_as_if_alone(client: openai.OpenAI) -> None:
    together = complete(client, prompt=["Once", "upon", "a"], temperature=0)
    alone = [complete(client, prompt=prompt, temperature=0).choices[0].text for prompt in ("Once", "upon", "a")]
    assert [choice.text for choice in together.choices] == alone


def test_seeds(client: openai.OpenAI) -> None:
    texts = [complete(client, seed=seed).choices[0].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    first, second = complete(client, n=2).choices
    assert first.text != second.text


def test_echo(client: openai.OpenAI) -> None:
    """[D-SAMP-3] max_tokens 0 with echo: the prompt, its log-probabilities, no new token."""
    reply = complete(client, prompt="Once upon", echo=True, logprobs=1, max_tokens=0)
    (choice,) = reply.choices
    assert (choice.text, choice.finish_reason, reply.usage.completion_tokens) == ("Once upon", "length", 0)
    assert len(choice.logprobs.tokens) == reply.usage.prompt_tokens == len(choice.logprobs.token_logprobs)
    assert choice.logprobs.token_logprobs[0] is None and all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    plain = complete(client, prompt="Once upon", temperature=0)
    echoed = complete(client, prompt="Once upon", temperature=0, echo=True)
    assert echoed.choices[0].text == "Once upon" + plain.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings(client: openai.OpenAI, stream: bool, include: bool) -> None:
    """[D-STOP-1] a stop string that begins and ends inside tokens; exactly the text before it, or through it."""
    text = complete(client, temperature=0).choices[0].text
    stop = text[11:18]
    expected = text[: text.index(stop) + (len(stop) if include else 0)]
    fields = {"temperature": 0, "stop": stop, "extra_body": {"include_stop_str_in_output": include}, "stream": stream}
    reply = complete(client, **fields)
    choices = [choice for chunk in reply for choice in chunk.choices] if stream else reply.choices
    assert "".join(choice.text for choice in choices) == expected
    assert choices[-1].finish_reason == "stop" and choices[-1].stop_reason == stop


def test_no_stop(client: openai.OpenAI) -> None:
    """[D-STOP-2] null and [] mean none, on both routes; an empty string is refused."""
    assert len({complete(client, temperature=0, stop=stop).choices[0].text for stop in (openai.NOT_GIVEN, None, [])}) == 1
    assert len({chat(client, temperature=0, stop=stop).choices[0].message.content for stop in (openai.NOT_GIVEN, None, [])}) == 1
    for stop in ("", [""], ["", "ZZZ"]):
        for call in (complete, chat):
            with pytest.raises(openai.BadRequestError, match="stop"):
                call(client, stop=stop)


@pytest.mark.parametrize("call", [complete, chat])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"999999999": 5}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"abc": 5}),
        ("logit_bias", {"5": 200}),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [999999999]),
        ("stop_token_ids", [2**70]),
        ("allowed_token_ids", [999999999]),
        ("allowed_token_ids", []),
    ],
)
def test_strange_token_ids(server: RunningServer, client: openai.OpenAI, call: Any, field: str, value: Any) -> None:
    """[D-SAMP-1] 400 naming the field; the vocabulary's own size is out of range too; others go on as if alone."""
    vocab_size = server.service.engine().tokenizer.vocab_size
    alone = complete(client, temperature=0).choices[0].text
    results: list[str] = []
    neighbour = threading.Thread(target=lambda: results.append(complete(client, temperature=0).choices[0].text))
    neighbour.start()
    for sent in (value, {str(vocab_size): 1} if isinstance(value, dict) else [vocab_size]):
        with pytest.raises(openai.BadRequestError) as caught:
            call(client, extra_body={field: sent})
        assert caught.value.body["param"] == field  # type: ignore[index]
    neighbour.join()
    assert results == [alone]


@pytest.mark.parametrize("prompt", [[999999999], [-1], [[1], [999999999]], []])
def test_strange_prompt_ids(client: openai.OpenAI, prompt: Any) -> None:
    """[D-SAMP-1]"""
    for echo in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, prompt=prompt, echo=echo)
        assert caught.value.body["param"] == "prompt"  # type: ignore[index]


def test_allowed_and_biased_ids(client: openai.OpenAI) -> None:
    text = complete(client, temperature=0, max_tokens=3, extra_body={"logit_bias": {"65": 100}}).choices[0]
    only = complete(client, max_tokens=5, logprobs=0, extra_body={"allowed_token_ids": [65]}).choices[0]
    assert len(set(only.logprobs.tokens)) == 1 and text.text


def test_small_temperatures_approach_greedy(server: RunningServer, client: openai.OpenAI) -> None:
    """[D-SAMP-2] no NaN, no empty text; top_p 0 means greedy; every reply is strict JSON."""
    greedy = complete(client, temperature=0).choices[0].text
    for temperature in (1e-4, 1e-5, 1e-6):
        assert complete(client, temperature=temperature).choices[0].text == greedy
    assert complete(client, top_p=0).choices[0].text == greedy == complete(client, top_p=1e-6).choices[0].text
    body = {"prompt": "x", "echo": True, "logprobs": 5, "temperature": 1, "top_k": 1, "max_tokens": 4}
    assert server.request("POST", "/v1/completions", body).json["choices"]
    forced = {"prompt": "x", "logprobs": 5, "allowed_token_ids": [65], "max_tokens": 4}
    assert server.request("POST", "/v1/completions", forced).json["choices"]


@pytest.mark.parametrize(
    ("call", "fields", "expected"),
    [
        (complete, {"max_tokens": openai.NOT_GIVEN}, 16),
        (complete, {"max_tokens": None}, 16),
        (complete, {"max_tokens": 1}, 1),
        (complete, {"max_tokens": 0}, 0),
        (complete, {"max_tokens": 100_000}, "context"),
        (complete, {"max_tokens": 10**30}, "context"),
        (chat, {"max_tokens": openai.NOT_GIVEN}, "context"),
        (chat, {"max_tokens": None}, "context"),
        (chat, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
    ],
)
def test_limits(client: openai.OpenAI, call: Any, fields: dict[str, Any], expected: Any) -> None:
    """[D-SAMP-3]"""
    reply = call(client, **fields, extra_body={"ignore_eos": True})
    room = CONTEXT - reply.usage.prompt_tokens
    assert reply.usage.completion_tokens == (room if expected == "context" else expected)
    assert reply.choices[0].finish_reason == "length"


def test_prompts_at_the_edge_of_the_context(client: openai.OpenAI) -> None:
    """[D-SAMP-3] too long: 400 with both numbers, none of them negative."""
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, prompt=[5] * (CONTEXT + 1))
    error: Any = caught.value.body
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT) in error["message"] and str(CONTEXT + 1) in error["message"] and "-" not in error["message"]
    reply = complete(client, prompt=[5] * (CONTEXT - 1), extra_body={"ignore_eos": True})
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (1, "length")


def test_what_is_not_supported_says_so(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    for fields, word in (
        ({"tools": [tool]}, "tools"),
        ({"functions": [{"name": "add"}]}, "functions"),
    ):
        with pytest.raises(openai.BadRequestError, match=word):
            chat(client, **fields)
    assert chat(client, tools=[tool], tool_choice="none", response_format={"type": "text"}).choices


def test_images_are_refused_without_being_fetched(client: openai.OpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}
    with pytest.raises(openai.BadRequestError, match="text only"):
        chat(client, messages=[{"role": "user", "content": [image]}])


def test_vllms_prompt_logprobs(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "prompt_logprobs": 2}
    document = server.request("POST", "/v1/chat/completions", body).json
    first, *others = document["prompt_logprobs"]
    assert first is None and len(others) == document["usage"]["prompt_tokens"] - 1
    assert all(len(entry) in (1, 2, 3) for entry in others)


async def test_async_client(server: RunningServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=5, stream=True
        )
        reasons = [chunk.choices[0].finish_reason async for chunk in stream]
    assert reasons[-1] in ("length", "stop")


def test_replies_are_compact_json(server: RunningServer) -> None:
    body = server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}).body
    assert json.dumps(json.loads(body), separators=(",", ":"), ensure_ascii=False).encode() == body


def test_cached_tokens_and_salts(client: openai.OpenAI) -> None:
    """[D-PFX-2] a salt starts anew, and finds its own tokens the second time."""
    messages = [{"role": "user", "content": "The same long question, again and again and again. " * 3}]

    def cached(**fields: Any) -> int:
        usage = chat(client, messages=messages, extra_body=fields).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        number = usage.prompt_tokens_details.cached_tokens
        assert number is not None and number % 16 == 0 and number < usage.prompt_tokens
        return number

    assert cached() == 0 and cached() > 0
    for salt in ("one", "two"):
        assert cached(cache_salt=salt) == 0
        assert cached(cache_salt=salt) > 0
    with pytest.raises(openai.BadRequestError, match="cache_salt"):
        cached(cache_salt="")
