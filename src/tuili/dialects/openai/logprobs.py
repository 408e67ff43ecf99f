"""Log-probabilities in the two shapes that OpenAI's two APIs have, and vLLM's shape for those of the prompt.

A token is shown as its text; one that is not whole UTF-8 by itself (a part of a character) is shown by its bytes, as OpenAI
does: ``\\xf0\\x9f`` in chat, ``bytes:\\xf0\\x9f`` in completions.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from tuili.dialects.openai.wire import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from tuili.types import TokenLogprob

TokenBytes = Callable[[int], bytes]

#: Written instead of minus infinity and NaN, which JSON does not have. The value is OpenAI's own.
FLOOR = -9999.0


def finite(logprob: float) -> float:
    return max(logprob, FLOOR) if math.isfinite(logprob) else FLOOR


def token_string(raw: bytes, prefix: str = "") -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(entries: Sequence[TokenLogprob], token_bytes: TokenBytes) -> ChatLogprobs:
    return ChatLogprobs([_chat_entry(entry, token_bytes) for entry in entries])


def _chat_entry(entry: TokenLogprob, token_bytes: TokenBytes) -> ChatTokenLogprob:
    raw = token_bytes(entry.token_id)
    top: list[TopLogprob] = []
    for token_id, logprob in entry.top:
        other = token_bytes(token_id)
        top.append(TopLogprob(token_string(other), finite(logprob), list(other)))
    return ChatTokenLogprob(token_string(raw), finite(entry.logprob), list(raw), top)


class CompletionLogprobsWriter:
    """Writes one choice's log-probabilities piece by piece, carrying the text offset from piece to piece."""

    def __init__(self, token_bytes: TokenBytes, num_top: int) -> None:
        self._token_bytes = token_bytes
        self._num_top = num_top
        self._offset = 0

    def write(self, entries: Iterable[tuple[int, TokenLogprob | None]]) -> CompletionLogprobs:
        """``entries``: token id with its log-probability, None for the first token of a prompt."""
        result = CompletionLogprobs([], [], [], [])
        for token_id, entry in entries:
            raw = self._token_bytes(token_id)
            result.tokens.append(token_string(raw, "bytes:"))
            result.text_offset.append(self._offset)
            # A character is counted where its first byte is: continuation bytes are 10xxxxxx.
            self._offset += sum(byte & 0xC0 != 0x80 for byte in raw)
            result.token_logprobs.append(None if entry is None else finite(entry.logprob))
            result.top_logprobs.append(self._top(entry))
        return result

    def _top(self, entry: TokenLogprob | None) -> dict[str, float] | None:
        if entry is None or self._num_top == 0:
            return None
        top: dict[str, float] = {}
        for token_id, logprob in (*entry.top[: self._num_top], (entry.token_id, entry.logprob)):
            # Two ids can have one text; the likelier comes first and stays.
            top.setdefault(token_string(self._token_bytes(token_id), "bytes:"), finite(logprob))
        return top


def prompt_logprobs(entries: Sequence[TokenLogprob | None], token_bytes: TokenBytes) -> PromptLogprobs:
    """vLLM's shape: for each prompt token a map from token id to its log-probability and rank; null for the first."""
    return [None if entry is None else _prompt_entry(entry, token_bytes) for entry in entries]


def _prompt_entry(entry: TokenLogprob, token_bytes: TokenBytes) -> dict[str, PromptLogprob]:
    shown: dict[str, PromptLogprob] = {}
    for rank, (token_id, logprob) in enumerate(entry.top, start=1):
        shown[str(token_id)] = PromptLogprob(finite(logprob), rank, token_string(token_bytes(token_id)))
    if str(entry.token_id) not in shown:
        # Beyond the asked alternatives the rank is unknown.
        own = PromptLogprob(finite(entry.logprob), None, token_string(token_bytes(entry.token_id)))
        shown = {str(entry.token_id): own, **shown}
    return shown
