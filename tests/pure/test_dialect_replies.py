"""OpenAI's replies: the shape of whole answers and of every chunk, from the engine's neutral events."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tuili.dialects.openai.chat import ChatReply
from tuili.dialects.openai.completions import CompletionReply
from tuili.dialects.openai.logprobs import token_string
from tuili.dialects.openai.reply import Reply, ReplyHeader
from tuili.dialects.openai.schema import ChatCompletionBody, CompletionBody, parse_body
from tuili.dialects.openai.wire import encode
from tuili.types import RequestOutput, SequenceDelta, TokenLogprob, Usage

HEADER = ReplyHeader("id-1", 1_700_000_000, "m", "f")
#: Token ids of these tests: 0-255 are bytes, 300 is a whole emoji.
EMOJI = "🦜"


def token_bytes(token_id: int) -> bytes:
    return EMOJI.encode() if token_id == 300 else bytes([token_id])


def chat_reply(**fields: Any) -> ChatReply:
    return ChatReply(
        parse_body({"messages": [{"role": "user", "content": "x"}], **fields}, ChatCompletionBody), HEADER, token_bytes
    )


def completion_reply(prompts: list[str], **fields: Any) -> CompletionReply:
    body = parse_body({"prompt": prompts, **fields}, CompletionBody)
    return CompletionReply(body, HEADER, token_bytes, [list(text.encode()) for text in prompts], prompts)


def event(*deltas: SequenceDelta, usage: Usage = Usage(2, 3, 1), **fields: Any) -> RequestOutput:  # noqa: B008
    return RequestOutput("r", deltas, usage, finished=any(d.finish_reason for d in deltas), **fields)


def delta(index: int, text: str, finish: Any = None, **fields: Any) -> SequenceDelta:
    token_ids = tuple(text.encode())
    fields.setdefault("logprobs", tuple(TokenLogprob(t, -0.5, ((t, -0.5), (65, -1.5))) for t in token_ids))
    return SequenceDelta(index, text, token_ids, finish_reason=finish, **fields)


def refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


def plain(struct: Any) -> dict[str, Any]:
    return json.loads(encode(struct), parse_constant=refuse_constant)


def stream(reply: Reply, events: list[tuple[int, RequestOutput]]) -> list[dict[str, Any]]:
    chunks = list(reply.opening())
    for prompt_index, output in events:
        reply.push(prompt_index, output)
        chunks += reply.news()
    return [plain(chunk) for chunk in [*chunks, *reply.closing()]]


def test_whole_chat() -> None:
    reply = chat_reply()
    reply.push(0, event(delta(0, "Hel")))
    reply.push(0, event(delta(0, "lo", "stop")))
    document = plain(reply.whole())
    assert document == {
        "id": "id-1",
        "created": 1_700_000_000,
        "model": "m",
        "system_fingerprint": "f",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}},
        "object": "chat.completion",
    }
    ChatCompletion.model_validate(document, strict=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [(None, "absent"), ({}, "absent"), ({"include_usage": False}, "absent"), ({"include_usage": True}, "last")],
)
def test_chat_stream(options: Any, expected: str) -> None:
    """[D-STRM-1] role once, finish_reason in every chunk and once not null, usage only when asked and then last."""
    events = [
        (0, event(delta(0, "Hel"))),
        (0, event(delta(0, ""))),
        (0, event(delta(0, "lo"))),
        (0, event(delta(0, "", "length"))),
    ]
    chunks = stream(chat_reply(stream=True, stream_options=options), events)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    if expected == "last":
        *chunks, last = chunks
        assert last["choices"] == [] and last["usage"]["total_tokens"] == 5
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert not any("usage" in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[1:]] == [{"content": "Hel"}, {"content": "lo"}, {}]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]


def test_continuous_usage() -> None:
    chunks = stream(
        chat_reply(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
        [(0, event(delta(0, "a"), usage=Usage(2, 1))), (0, event(delta(0, "b", "stop"), usage=Usage(2, 2)))],
    )
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 2]


def test_one_chunk_for_several_events_when_the_reader_is_slow() -> None:
    reply = chat_reply(stream=True, n=2)
    for text in "abc":
        reply.push(0, event(delta(0, text), delta(1, text.upper())))
    assert [plain(chunk)["choices"][0]["delta"]["content"] for chunk in reply.news()] == ["abc", "ABC"]
    assert reply.news() == []


@given(st.lists(st.tuples(st.integers(0, 1), st.text(max_size=4)), max_size=20), st.data())
def test_stream_equals_whole(pieces: list[tuple[int, str]], data: st.DataObject) -> None:
    """Joined deltas, log-probabilities and reasons are those of the whole answer, for any split and any coalescing."""
    deltas = [delta(index, text) for index, text in pieces] + [delta(0, "", "stop", stop_reason="x"), delta(1, "end", "length")]
    whole, streamed = chat_reply(n=2, logprobs=True, top_logprobs=2), chat_reply(n=2, logprobs=True, top_logprobs=2, stream=True)
    chunks: list[Any] = []
    for one in deltas:
        whole.push(0, event(one))
        streamed.push(0, event(one))
        if data.draw(st.booleans()):
            chunks += streamed.news()
    chunks += streamed.news()
    for choice in plain(whole.whole())["choices"]:
        parts = [c for chunk in chunks for c in plain(chunk)["choices"] if c["index"] == choice["index"]]
        assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
        assert [e for part in parts if part["logprobs"] for e in part["logprobs"]["content"]] == choice["logprobs"]["content"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
        assert parts[-1]["stop_reason"] == choice["stop_reason"]
        assert all("content" not in part["delta"] or part["delta"]["content"] for part in parts)


def test_chat_logprobs_show_parts_of_characters_by_their_bytes() -> None:
    """[D-TOK-1] no U+FFFD, not in log-probabilities either."""
    entries = tuple(TokenLogprob(byte, -0.25, ((byte, -0.25), (300, -2.0))) for byte in EMOJI.encode())
    reply = chat_reply(logprobs=True, top_logprobs=2)
    reply.push(0, event(SequenceDelta(0, EMOJI, (), entries, "stop")))
    document = plain(reply.whole())
    ChatCompletion.model_validate(document, strict=True)
    content = document["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == "\\xf0" and bytes(b for e in content for b in e["bytes"]).decode() == EMOJI
    assert content[0]["top_logprobs"][1] == {"token": EMOJI, "logprob": -2.0, "bytes": list(EMOJI.encode())}
    assert "\ufffd" not in json.dumps(document, ensure_ascii=False)


def test_infinite_logprobs_are_written_as_a_floor() -> None:
    """[D-SAMP-2] strict JSON: no NaN, no Infinity."""
    entries = (TokenLogprob(65, -math.inf, ((65, -math.inf), (66, math.nan))),)
    for reply in (chat_reply(logprobs=True, top_logprobs=2), completion_reply(["x"], logprobs=2, prompt_logprobs=2)):
        reply.push(0, event(SequenceDelta(0, "A", (65,), entries, "stop"), prompt_logprobs=(None, *entries)))
        assert "-9999.0" in json.dumps(plain(reply.whole()))


def test_completion_choices_of_several_prompts() -> None:
    reply = completion_reply(["p", "q"], n=2)
    for prompt_index in (1, 0):
        for index in (1, 0):
            reply.push(prompt_index, event(delta(index, f"{prompt_index}{index}", "stop"), usage=Usage(1, 2)))
    document = plain(reply.whole())
    Completion.model_validate(document, strict=True)
    assert [(choice["index"], choice["text"]) for choice in document["choices"]] == [(0, "00"), (1, "01"), (2, "10"), (3, "11")]
    assert document["usage"]["prompt_tokens"] == 2 and document["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("streamed", [False, True])
def test_echo_with_logprobs(streamed: bool) -> None:
    """[D-SAMP-3] echo puts the prompt and its log-probabilities before the answer; offsets count characters."""
    prompt = "hé"
    reply = completion_reply([prompt], echo=True, logprobs=1, stream=streamed)
    of_prompt = (None, *(TokenLogprob(byte, -1.0, ((byte, -1.0),)) for byte in prompt.encode()[1:]))
    events = [(0, event(delta(0, "ab"), prompt_logprobs=of_prompt)), (0, event(delta(0, "c", "length")))]
    if streamed:
        choices = [choice for chunk in stream(reply, events) for choice in chunk["choices"]]
    else:
        for prompt_index, output in events:
            reply.push(prompt_index, output)
        choices = plain(reply.whole())["choices"]
    logprobs = {key: [value for choice in choices for value in choice["logprobs"][key]] for key in choices[0]["logprobs"]}
    assert "".join(choice["text"] for choice in choices) == "héabc"
    assert logprobs["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "a", "b", "c"]
    assert logprobs["text_offset"] == [0, 1, 2, 2, 3, 4]
    assert logprobs["token_logprobs"] == [None, -1.0, -1.0, -0.5, -0.5, -0.5]
    assert logprobs["top_logprobs"][0] is None and logprobs["top_logprobs"][3] == {"a": -0.5}


def test_echo_of_no_new_token() -> None:
    """[D-SAMP-3] max_tokens 0 with echo: the prompt's log-probabilities and nothing else."""
    reply = completion_reply(["ab"], echo=True, logprobs=1, max_tokens=0)
    reply.push(0, event(SequenceDelta(0, "", (), (), "length"), prompt_logprobs=(None, TokenLogprob(98, -1.0))))
    choice = plain(reply.whole())["choices"][0]
    assert choice["text"] == "ab" and choice["logprobs"]["tokens"] == ["a", "b"]


def test_prompt_logprobs_have_vllms_shape() -> None:
    reply = chat_reply(prompt_logprobs=1)
    reply.push(0, event(delta(0, "x", "stop"), prompt_logprobs=(None, TokenLogprob(66, -3.0, ((65, -0.5),)))))
    assert plain(reply.whole())["prompt_logprobs"] == [
        None,
        {
            "66": {"logprob": -3.0, "rank": None, "decoded_token": "B"},
            "65": {"logprob": -0.5, "rank": 1, "decoded_token": "A"},
        },
    ]


def test_token_strings() -> None:
    assert [token_string(b"a"), token_string(b"\xf0\x9f", "bytes:")] == ["a", "bytes:\\xf0\\x9f"]
