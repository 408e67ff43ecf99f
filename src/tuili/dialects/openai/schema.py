"""The bodies that OpenAI's clients send, with vLLM's extra fields under vLLM's names; and what is refused by name.

Numbers and booleans are strict: ``"0.7"`` is not a temperature. ``null`` always means the default. Fields that are not declared
here are accepted and reported as ignored (``ignored_fields``), so that a typo is seen; fields that would change the answer and
are not served yet are refused (``_REFUSED``).

Source: https://platform.openai.com/docs/api-reference (chat, completions); https://docs.vllm.ai (sampling parameters).
"""

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tuili.errors import InvalidRequest

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 4096

Json = Any


class Wire(BaseModel):
    """A strict JSON object whose undeclared fields are kept in ``model_extra``."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class StreamOptions(Wire):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Wire):
    """The fields that chat completions and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    # What form the output has to have: OpenAI's, vLLM's, and vLLM's older names.
    response_format: dict[str, Json] | None = None
    structured_outputs: dict[str, Json] | None = None
    guided_json: Json = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # Bookkeeping of the caller; nothing in the answer depends on it.
    user: str | None = None
    metadata: Json = None
    safety_identifier: Json = None
    prompt_cache_key: Json = None
    prompt_cache_retention: Json = None
    prompt_cache_options: Json = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.include_usage and self.stream_options and self.stream_options.continuous_usage_stats)


class Function(Wire):
    name: str
    arguments: str | dict[str, Json] | None = None


class ToolCall(Wire):
    id: str | None = None
    type: str | None = None
    function: Function


class Message(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Json]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatCompletionBody(GenerationBody):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Json] | None = None
    tools: list[dict[str, Json]] | None = None
    tool_choice: str | dict[str, Json] | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(GenerationBody):
    prompt: Json = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


Body = TypeVar("Body", bound=GenerationBody)


def parse_body(document: object, kind: type[Body]) -> Body:
    """A decoded JSON document as a body of ``kind``; raises InvalidRequest that names the offending field."""
    if not isinstance(document, dict):
        raise InvalidRequest(f"the body is a JSON {_json_kind(document)}; it has to be an object, such as {{...}}")
    try:
        body = kind.model_validate(document)
    except ValidationError as error:
        raise _readable(error) from None
    _refuse_unsupported(body)
    _check_stops(body.stop)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options goes with stream: true only; leave it out", field="stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs is not available with stream: true; leave one of them out", field="prompt_logprobs")
    return body


def ignored_fields(body: GenerationBody) -> list[str]:
    """Names of the fields that were sent and have no effect, each with the nearest known name where it looks like a typo."""
    known = type(body).model_fields
    names: list[str] = []
    for name, value in (body.model_extra or {}).items():
        if value is None or name in _REFUSED or value == _WITHOUT_EFFECT.get(name, _NOTHING):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        names.append(f"{name} (did you mean {near[0]}?)" if near else name)
    if isinstance(body, ChatCompletionBody):
        for index, message in enumerate(body.messages):
            extra = message.model_extra or {}
            names += [f"messages.{index}.{name}" for name, value in extra.items() if value not in (None, [])]
    return names


_NOTHING = object()

#: Undeclared fields whose given value promises nothing beyond what is done anyway.
_WITHOUT_EFFECT: dict[str, object] = {
    "store": False,
    "service_tier": "auto",
    "modalities": ["text"],
    "spaces_between_special_tokens": True,
    "use_beam_search": False,
}


def _absent(value: object) -> bool:
    return value is None or value is False or value == [] or value == {}


_TOOLS = 'tool calling is not supported yet: leave it out, or send tool_choice: "none"'

#: field -> (values that are fine, what to do otherwise)
_REFUSED: dict[str, tuple[Callable[[object], bool], str]] = {
    "functions": (_absent, _TOOLS),
    "function_call": (lambda value: _absent(value) or value == "none", _TOOLS),
    "chat_template": (_absent, "templates from requests are never run: the model's own is used; leave it out"),
    "continue_final_message": (_absent, "not supported yet: leave it out, or use /v1/completions with the whole prompt"),
    "documents": (_absent, "not supported: put the documents into a message"),
    "suffix": (lambda value: _absent(value) or value == "", "fill-in-the-middle is not supported here; leave it out"),
    "best_of": (lambda value: value in (None, 1), "not supported: ask for n answers and choose among them"),
    "use_beam_search": (_absent, "beam search is not supported: leave it out"),
    "bad_words": (_absent, "not supported: use logit_bias with token ids"),
    "truncate_prompt_tokens": (_absent, "prompts are never cut silently: shorten it before sending"),
    "web_search_options": (_absent, "this server searches nothing: leave it out"),
    "audio": (_absent, "this server makes text only: leave it out"),
    "modalities": (lambda value: _absent(value) or value == ["text"], 'this server makes text only: send ["text"]'),
}


def _refuse_unsupported(body: GenerationBody) -> None:
    for name, (is_fine, advice) in _REFUSED.items():
        value = getattr(body, name, None)
        if not is_fine(value):
            raise InvalidRequest(f"{name}: {advice}", field=name)
    if not isinstance(body, ChatCompletionBody):
        return
    if (body.model_extra or {}).get("echo"):
        raise InvalidRequest("echo: belongs to /v1/completions; leave it out", field="echo")
    if body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest(f"tool_choice: {_TOOLS}", field="tool_choice")
    if body.tools and body.tool_choice != "none":
        raise InvalidRequest(f"tools: {_TOOLS}", field="tools")


def _check_stops(stop: str | list[str] | None) -> None:
    stops: Sequence[str] = [stop] if isinstance(stop, str) else stop or ()
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop has {len(stops)} strings; at most {MAX_STOPS} are possible", field="stop")
    longest = max((len(text) for text in stops), default=0)
    if longest > MAX_STOP_CHARACTERS:
        raise InvalidRequest(
            f"stop has a string of {longest} characters; at most {MAX_STOP_CHARACTERS} are possible", field="stop"
        )


def _readable(error: ValidationError) -> InvalidRequest:
    lines: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False):
        # A union reports one error for each member, with the member's name as the last part of the place.
        place = ".".join(str(part) for part in item["loc"] if part not in _UNION_MEMBERS)
        said = "is required" if item["type"] == "missing" else _plain(item["msg"], item["input"])
        lines[place] = f"{lines[place]}, or {said.removeprefix('has to be ')}" if place in lines else said
    shown = list(lines.items())[:3]
    message = "; ".join(f"{place} {said}" for place, said in shown)
    if len(lines) > len(shown):
        message += f"; and {len(lines) - len(shown)} more"
    return InvalidRequest(message, field=shown[0][0])


_UNION_MEMBERS = {"str", "list[str]", "list[dict[str,any]]", "dict[str,any]"}


def _plain(message: str, value: object) -> str:
    return message.replace("Input should be ", "has to be ", 1) + f" (it is {_json_kind(value)})"


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"string {value!r}" if len(value) <= 40 else "string"
    if isinstance(value, int | float):
        return f"number {value!r}" if len(repr(value)) <= 40 else "number"
    return "array" if isinstance(value, list) else "object"
