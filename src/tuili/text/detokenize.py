"""Token ids to text, one token at a time."""

import codecs

from tuili.text.tokenizer.base import Tokenizer


class Detokenizer:
    """Incremental detokenisation of one sequence.

    Law: the joined results of ``push`` and ``flush`` equal the decoded whole, and no U+FFFD appears while a character may still
    be completed. Bytes that can never be UTF-8 become U+FFFD at once; a character never completed becomes one at the end.

    The tokens continue a prompt, so a first space is text. ``at_start`` says that they begin the text: then the space which
    ``add_space_prefix`` put there on encoding is taken away, as ``Tokenizer.decode`` does.
    """

    __slots__ = ("_decoder", "_strip", "_tokenizer", "skip_special_tokens")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, *, at_start: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = at_start and tokenizer.add_space_prefix
        self.skip_special_tokens = skip_special_tokens

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; may be empty."""
        if self.skip_special_tokens and self._tokenizer.is_hidden(token_id):
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is still held back, at the end of the sequence."""
        return self._decoder.decode(b"", True)
