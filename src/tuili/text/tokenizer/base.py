"""Text to token ids and back."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tokenizers

from tuili.errors import InvalidRequest
from tuili.text.tokenizer.control import ControlTokens
from tuili.text.tokenizer.vocabulary import BYTE, NORMAL, Vocabulary

_SPACE = re.compile(r"\s+")


class Segment(NamedTuple):
    """A piece of a prompt. Control tokens are looked for only inside runs of template text, never in a user's."""

    text: str
    is_template: bool


@dataclass(frozen=True, slots=True)
class Special:
    """Token ids with a meaning. ``end_token_ids``: any of them ends a generation. ``strip_after``: control tokens that swallow
    the white space after them."""

    bos_token_id: int | None
    eos_token_id: int | None
    end_token_ids: frozenset[int]
    padding_token_id: int | None = None
    strip_after: frozenset[int] = frozenset()


class Tokenizer:
    """A model's tokenizer. All methods may be called from any thread.

    ``vocab_size`` counts the tokens of the file. ``eos_token_ids`` are all ids that end a generation; ``eos_token_id`` is the one
    the file calls so. ``unused_token_ids`` are padding, never to be generated. ``chat_template`` is the default template of the
    file, ``chat_templates`` all of them by name ("default" among them).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        model: tokenizers.Tokenizer,
        special: Special,
        *,
        add_bos: bool,
        add_eos: bool,
        chat_templates: Mapping[str, str],
        bytes_of_token: Callable[[str], bytes],
    ) -> None:
        self._vocabulary = vocabulary
        self._model = model
        self._special = special
        self._bytes_of_token = bytes_of_token
        self._bytes: list[bytes | None] = [None] * len(vocabulary.tokens)
        self.vocab_size = len(vocabulary.tokens)
        self.bos_token_id = special.bos_token_id
        self.eos_token_id = special.eos_token_id
        self.eos_token_ids = special.end_token_ids
        self.padding_token_id = special.padding_token_id
        self.add_bos = add_bos and special.bos_token_id is not None
        self.add_eos = add_eos and special.eos_token_id is not None
        self.add_space_prefix = vocabulary.add_space_prefix
        self.control_token_ids = vocabulary.control
        self.unused_token_ids = vocabulary.unused
        self.chat_templates = dict(chat_templates)
        self.chat_template = self.chat_templates.get("default")
        self.control = ControlTokens({vocabulary.tokens[i]: i for i in sorted(vocabulary.control)})
        self._hidden = vocabulary.control | vocabulary.unused
        if vocabulary.user_defined:
            plain = [tokenizers.AddedToken(vocabulary.tokens[i], normalized=False) for i in vocabulary.user_defined]
            model.add_tokens(plain)

    def encode(self, text: str, *, add_bos: bool | None = None, parse_control: bool = True) -> list[int]:
        """Token ids of ``text``. Control tokens in it are parsed unless ``parse_control`` is false.

        ``add_bos`` None does what the model file says; the beginning-of-sequence token is never put before another one. Only then
        an end-of-sequence token is added for the models, embedders mostly, whose file wants one.
        """
        ids = self.encode_segments([Segment(text, parse_control)])
        wanted = self.add_bos if add_bos is None else add_bos and self.bos_token_id is not None
        if wanted and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self.bos_token_id)
        if add_bos is None and self.add_eos and self.eos_token_id is not None and ids[-1:] != [self.eos_token_id]:
            ids.append(self.eos_token_id)
        return ids

    def encode_segments(self, segments: Iterable[Segment | tuple[str, bool]]) -> list[int]:
        """Token ids of the joined text, without adding any. Control tokens come from template text alone.

        Merges run across the borders of segments, so that the ids are those of the joined string, unless a user typed a control
        token: that stays ordinary text.
        """
        text, found = self._locate(segments)
        ids: list[int] = []
        position = 0
        for start, end, control in found:
            if start < position:
                continue
            ids += self._encode_plain(text[position:start])
            ids.append(control)
            position = end
            if control in self._special.strip_after and (space := _SPACE.match(text, position)):
                position = space.end()
        return ids + self._encode_plain(text[position:])

    def _locate(self, segments: Iterable[Segment | tuple[str, bool]]) -> tuple[str, list[tuple[int, int, int]]]:
        """The joined text, and the control tokens inside runs of template text."""
        found: list[tuple[int, int, int]] = []
        parts: list[str] = []
        run: list[str] = []
        length = 0

        def close_run() -> None:
            nonlocal length
            text = "".join(run)
            found.extend((length + start, length + end, control) for start, end, control in self.control.find(text))
            length += len(text)
            parts.append(text)
            run.clear()

        for text, is_template in segments:
            _check_unicode(text)
            if is_template:
                run.append(text)
                continue
            close_run()
            parts.append(text)
            length += len(text)
        close_run()
        return "".join(parts), found

    def _encode_plain(self, text: str) -> list[int]:
        return self._model.encode(text, add_special_tokens=False).ids if text else []

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it."""
        return self._vocabulary.tokens[self._checked(token_id)]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to the text; control tokens give their own name."""
        cached = self._bytes[self._checked(token_id)]
        if cached is None:
            cached = self._bytes[token_id] = self._make_bytes(token_id)
        return cached

    def _make_bytes(self, token_id: int) -> bytes:
        token, kind = self._vocabulary.tokens[token_id], self._vocabulary.types[token_id]
        if kind == BYTE and len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        if kind == NORMAL and token_id not in self._vocabulary.control:
            return self._bytes_of_token(token)
        return token.encode()

    def is_hidden(self, token_id: int) -> bool:
        """Whether ``skip_special_tokens`` leaves the token out: control and unused ones."""
        return token_id in self._hidden

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence; bytes that are not UTF-8 become U+FFFD.

        The space that ``add_space_prefix`` put before the first word on encoding is taken away again.
        """
        hidden = self._hidden if skip_special_tokens else frozenset[int]()
        data = b"".join([self.token_bytes(i) for i in ids if i not in hidden])
        if self.add_space_prefix:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def num_tokens(self, text: str) -> int:
        """How many tokens ``encode`` gives."""
        return len(self.encode(text))

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequest(f"token id {token_id} is outside of the vocabulary; ids are 0 to {self.vocab_size - 1}")
        return token_id


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can carry half of a surrogate pair
        raise InvalidRequest(
            "the text holds half of a surrogate pair, which is not a character; send well-formed text"
        ) from error
