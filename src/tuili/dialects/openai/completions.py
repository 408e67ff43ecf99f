"""Completions: the prompts, and the reply."""

from collections.abc import Sequence
from typing import TypeGuard

from tuili.dialects.openai.logprobs import CompletionLogprobsWriter, prompt_logprobs
from tuili.dialects.openai.params import usage
from tuili.dialects.openai.reply import Choice, ReplyHeader, TokenBytes
from tuili.dialects.openai.schema import CompletionBody
from tuili.dialects.openai.wire import UNSET, Completion, CompletionChoice, CompletionLogprobs, PromptLogprobs, UnsetType
from tuili.errors import InvalidRequest
from tuili.types import RequestOutput, TokenLogprob
from tuili.types import Usage as TokenCounts

#: A prompt as text, or as token ids.
Prompt = str | list[int]

_FORMS = "a string, an array of strings, an array of token ids, or an array of arrays of token ids"


def prompts(body: CompletionBody) -> list[Prompt]:
    """The one or several prompts of a call. Raises InvalidRequest."""
    value = body.prompt
    if value is None:
        raise InvalidRequest(f"prompt is required: {_FORMS}", field="prompt")
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _all_ids(value):
            return [value]
        if all(isinstance(item, str) for item in value):
            return list(value)
        if all(isinstance(item, list) and item and _all_ids(item) for item in value):
            return list(value)
    raise InvalidRequest(f"prompt has to be {_FORMS}, none of them empty", field="prompt")


def _all_ids(value: Sequence[object]) -> TypeGuard[list[int]]:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in value)


class CompletionReply:
    """Feeds on the engine's events; see ``reply.Reply``.

    ``prompt_ids`` and ``prompt_texts`` have one entry for each prompt; the texts are shown when ``echo`` is set.
    Choice ``i * n + j`` is the j-th answer to prompt i.
    """

    def __init__(
        self,
        body: CompletionBody,
        header: ReplyHeader,
        token_bytes: TokenBytes,
        prompt_ids: Sequence[Sequence[int]],
        prompt_texts: Sequence[str],
    ) -> None:
        self._head = (header.id, header.created, header.model, header.fingerprint)
        self._token_bytes = token_bytes
        self._n = body.n or 1
        self._echo = bool(body.echo)
        self._num_top = body.logprobs
        self._show_prompt_logprobs = body.prompt_logprobs is not None
        self._include_usage = body.include_usage
        self._continuous_usage = body.continuous_usage
        self._no_usage: UnsetType | None = None if body.include_usage else UNSET
        self._prompt_ids = prompt_ids
        self._prompt_texts = prompt_texts
        self._choices = [Choice(index) for index in range(len(prompt_ids) * self._n)]
        self._writers = [CompletionLogprobsWriter(token_bytes, body.logprobs or 0) for _ in self._choices]
        self._echoed = [not self._echo] * len(self._choices)
        self._counts = [TokenCounts(0, 0) for _ in prompt_ids]
        self._prompt_logprobs: list[tuple[TokenLogprob | None, ...] | None] = [None for _ in prompt_ids]

    def opening(self) -> list[Completion]:
        return []

    def push(self, prompt_index: int, output: RequestOutput) -> None:
        self._counts[prompt_index] = output.usage
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt_index] = output.prompt_logprobs
        for delta in output.deltas:
            self._choices[prompt_index * self._n + delta.index].push(delta)

    def news(self) -> list[Completion]:
        return [self._chunk(self._take(choice, in_stream=True)) for choice in self._choices if choice.has_news]

    def closing(self) -> list[Completion]:
        """The totals, when they were asked for."""
        return [Completion(*self._head, [], usage(self._counts))] if self._include_usage else []

    def whole(self) -> Completion:
        choices = [self._take(choice, in_stream=False) for choice in self._choices]
        return Completion(*self._head, choices, usage(self._counts))

    def _chunk(self, choice: CompletionChoice) -> Completion:
        return Completion(*self._head, [choice], usage(self._counts) if self._continuous_usage else self._no_usage)

    def _take(self, choice: Choice, *, in_stream: bool) -> CompletionChoice:
        text, entries = choice.take()
        shown: list[tuple[int, TokenLogprob | None]] = [(entry.token_id, entry) for entry in entries]
        if not self._echoed[choice.index]:
            self._echoed[choice.index] = True
            prompt_text, prompt_entries = self._echo_of(choice)
            text, shown = prompt_text + text, prompt_entries + shown
        unfinished = choice.finish_reason is None
        return CompletionChoice(
            choice.index,
            text,
            self._logprobs(choice, shown),
            choice.finish_reason,
            UNSET if unfinished else choice.stop_reason,
            UNSET if in_stream else self._prompt_logprobs_of(choice),
        )

    def _echo_of(self, choice: Choice) -> tuple[str, list[tuple[int, TokenLogprob | None]]]:
        prompt_index = choice.index // self._n
        text, entries = self._prompt_texts[prompt_index], self._prompt_logprobs[prompt_index]
        if self._num_top is None or entries is None:
            return text, []
        return text, list(zip(self._prompt_ids[prompt_index], entries, strict=True))

    def _logprobs(self, choice: Choice, entries: list[tuple[int, TokenLogprob | None]]) -> CompletionLogprobs | None:
        return self._writers[choice.index].write(entries) if self._num_top is not None else None

    def _prompt_logprobs_of(self, choice: Choice) -> PromptLogprobs | UnsetType:
        entries = self._prompt_logprobs[choice.index // self._n]
        if entries is None or not self._show_prompt_logprobs:
            return UNSET
        return prompt_logprobs(entries, self._token_bytes)
