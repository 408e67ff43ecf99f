"""Chat completions: the messages for the template, and the reply."""

from collections.abc import Mapping, Sequence
from typing import Any

from tuili.dialects.openai.logprobs import chat_logprobs, prompt_logprobs
from tuili.dialects.openai.params import usage
from tuili.dialects.openai.reply import Choice, ReplyHeader, TokenBytes
from tuili.dialects.openai.schema import ChatCompletionBody, Message
from tuili.dialects.openai.wire import (
    UNSET,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    UnsetType,
)
from tuili.errors import InvalidRequest
from tuili.types import RequestOutput, TokenLogprob
from tuili.types import Usage as TokenCounts

#: What chat_template_kwargs may not replace: what the server itself passes, and the helpers that templates rely on.
RESERVED_TEMPLATE_NAMES = frozenset(
    (
        "add_generation_prompt",
        "add_special_tokens",
        "bos_token",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "eos_token",
        "messages",
        "model",
        "namespace",
        "pad_token",
        "raise_exception",
        "return_dict",
        "return_tensors",
        "strftime_now",
        "template",
        "tojson",
        "tokenize",
        "tokenizer",
        "tools",
        "unk_token",
    )
)


def chat_messages(body: ChatCompletionBody) -> list[dict[str, Any]]:
    """Messages as templates expect them: content is a string, ``developer`` is ``system``. Raises InvalidRequest."""
    if not body.messages:
        raise InvalidRequest("messages is empty; at least one message is needed", field="messages")
    return [_message(message, f"messages.{index}") for index, message in enumerate(body.messages)]


def _message(message: Message, place: str) -> dict[str, Any]:
    may_be_empty = message.role in ("assistant", "tool")
    if message.content is None and not may_be_empty:
        raise InvalidRequest(f"{place}.content is required for the role {message.role}", field=f"{place}.content")
    plain: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, f"{place}.content"),
    }
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    if message.tool_calls:
        plain["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
    return plain


def _text(content: str | Sequence[Mapping[str, Any]] | None, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part_text(part, f"{place}.{index}") for index, part in enumerate(content))


def _part_text(part: Mapping[str, Any], place: str) -> str:
    kind = part.get("type")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind in ("text", "refusal") and isinstance(text, str):
        return text
    if kind in ("text", "refusal"):
        raise InvalidRequest(f"{place} has no {kind}; it has to be a string", field=place)
    raise InvalidRequest(
        f'{place} has the type {str(kind)[:40]!r}; this model reads text only (nothing was fetched): send type "text"',
        field=place,
    )


def template_arguments(body: ChatCompletionBody) -> dict[str, Any]:
    """``chat_template_kwargs`` without anything that could replace the conversation or the template. Raises InvalidRequest."""
    arguments = body.chat_template_kwargs or {}
    for name in arguments:
        if name in RESERVED_TEMPLATE_NAMES or not name.isidentifier() or name.startswith("_"):
            raise InvalidRequest(
                f"chat_template_kwargs may not set {name[:40]!r}; only variables that the model's own template defines, "
                "such as enable_thinking",
                field="chat_template_kwargs",
            )
    return arguments


class ChatReply:
    """Feeds on the engine's events; see ``reply.Reply``."""

    def __init__(self, body: ChatCompletionBody, header: ReplyHeader, token_bytes: TokenBytes) -> None:
        self._head = (header.id, header.created, header.model, header.fingerprint)
        self._token_bytes = token_bytes
        self._with_logprobs = bool(body.logprobs)
        self._include_usage = body.include_usage
        self._continuous_usage = body.continuous_usage
        self._no_usage: UnsetType | None = None if body.include_usage else UNSET
        self._choices = [Choice(index) for index in range(body.n or 1)]
        self._counts = TokenCounts(0, 0)
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    def opening(self) -> list[ChatChunk]:
        """The role, once for each choice."""
        return [self._chunk(ChatChunkChoice(choice.index, ChatDelta("assistant", ""))) for choice in self._choices]

    def push(self, prompt_index: int, output: RequestOutput) -> None:
        assert prompt_index == 0
        self._counts = output.usage
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        for delta in output.deltas:
            self._choices[delta.index].push(delta)

    def news(self) -> list[ChatChunk]:
        return [self._chunk(self._news_of(choice)) for choice in self._choices if choice.has_news]

    def closing(self) -> list[ChatChunk]:
        """The totals, when they were asked for."""
        return [ChatChunk(*self._head, [], usage([self._counts]))] if self._include_usage else []

    def whole(self) -> ChatCompletion:
        prompt = self._prompt_logprobs
        return ChatCompletion(
            *self._head,
            [self._whole_of(choice) for choice in self._choices],
            usage([self._counts]),
            UNSET if prompt is None else prompt_logprobs(prompt, self._token_bytes),
        )

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(*self._head, [choice], usage([self._counts]) if self._continuous_usage else self._no_usage)

    def _news_of(self, choice: Choice) -> ChatChunkChoice:
        text, entries = choice.take()
        delta = ChatDelta(content=text) if text else ChatDelta()
        if choice.finish_reason is None:
            return ChatChunkChoice(choice.index, delta, self._logprobs(entries))
        return ChatChunkChoice(choice.index, delta, self._logprobs(entries), choice.finish_reason, choice.stop_reason)

    def _whole_of(self, choice: Choice) -> ChatChoice:
        text, entries = choice.take()
        assert choice.finish_reason is not None, "a reply is whole only after its last event"
        logprobs = self._logprobs(entries) if entries or not self._with_logprobs else ChatLogprobs([])
        message = ChatMessage("assistant", text)
        return ChatChoice(choice.index, message, logprobs, choice.finish_reason, choice.stop_reason)

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return chat_logprobs(entries, self._token_bytes) if self._with_logprobs and entries else None
