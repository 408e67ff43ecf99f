"""Byte-level BPE (``tokenizer.ggml.model`` "gpt2"): GPT-2's scheme, with the model's own way of cutting words."""

from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from tuili.errors import ModelFileError, NotSupported
from tuili.text.tokenizer.pretokenize import pre_tokenizer
from tuili.text.tokenizer.vocabulary import Vocabulary


def build(vocabulary: Vocabulary, cache_dir: Path | None) -> Tokenizer:
    """A tokenizer for text without control tokens. Raises NotSupported without merges or with an unknown pre-tokenizer."""
    rules = pre_tokenizer(vocabulary.pre)
    if not vocabulary.merges:
        raise NotSupported("the file has no tokenizer.ggml.merges, which a gpt2 tokenizer needs; convert the model again")
    merges = [(left, right) for left, space, right in (merge.partition(" ") for merge in vocabulary.merges) if space]
    if len(merges) != len(vocabulary.merges):
        bad = next(merge for merge in vocabulary.merges if " " not in merge)
        raise ModelFileError(f"tokenizer.ggml.merges holds {bad!r}; a merge is two tokens with a space between")
    try:
        model = models.BPE(vocab=vocabulary.text_ids(), merges=merges, ignore_merges=rules.ignore_merges)
    except Exception as error:  # the library raises a bare Exception
        raise ModelFileError(f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}") from error
    tokenizer = Tokenizer(model)
    if rules.normal_form == "NFC":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


@cache
def byte_of() -> dict[str, int]:
    """GPT-2's mapping of printable characters to bytes (openai/gpt-2, src/encoder.py, bytes_to_unicode, inverted)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def token_bytes(token: str) -> bytes:
    """The bytes that a normal token stands for; characters outside of the mapping stand for themselves."""
    table = byte_of()
    try:
        return bytes([table[character] for character in token])
    except KeyError:
        return token.encode()
