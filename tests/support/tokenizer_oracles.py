"""Other people's tokenizers, and a naive one, built from the same GGUF metadata."""

import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import regex

from tuili.text.tokenizer.bpe import byte_of
from tuili.text.tokenizer.pretokenize import TABLE

Encode = Callable[[str], list[int]]


def naive_bpe(metadata: Mapping[str, Any]) -> Encode:
    """Byte-level BPE straight from its definition: merge the adjacent pair of lowest rank until there is none."""
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    patterns = [regex.compile(p, regex.V1 | regex.MULTILINE) for p in TABLE[metadata["tokenizer.ggml.pre"]].patterns]
    letter = {byte: character for character, byte in byte_of().items()}

    def encode(text: str) -> list[int]:
        words = [text]
        for pattern in patterns:
            words = [part for word in words for part in regex.split(f"({pattern.pattern})", word, flags=pattern.flags) if part]
        out: list[int] = []
        for word in words:
            symbols = [letter[byte] for byte in word.encode()]
            while len(symbols) > 1:
                rank, at = min((ranks.get(pair, len(ranks)), i) for i, pair in enumerate(pairwise(symbols)))
                if rank == len(ranks):
                    break
                symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            out += [ids[symbol] for symbol in symbols]
        return out

    return encode


def tiktoken_bpe(metadata: Mapping[str, Any]) -> Encode:
    """OpenAI's implementation; right where the order of merges is the order of ids."""
    import tiktoken

    table = byte_of()
    types = metadata["tokenizer.ggml.token_type"]
    ranks = {bytes(table[c] for c in t): i for i, t in enumerate(metadata["tokenizer.ggml.tokens"]) if types[i] == 1}
    (pattern,) = TABLE[metadata["tokenizer.ggml.pre"]].patterns
    encoding = tiktoken.Encoding("oracle", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return encoding.encode_ordinary


def sentencepiece_bpe(metadata: Mapping[str, Any]) -> Encode:
    """Google's implementation, from a ModelProto written by hand (sentencepiece_model.proto)."""
    import sentencepiece

    def field(number: int, payload: bytes) -> bytes:
        return _varint(number << 3 | 2) + _varint(len(payload)) + payload

    def integer(number: int, value: int) -> bytes:
        return _varint(number << 3) + _varint(value)

    unknown = metadata["tokenizer.ggml.unknown_token_id"]
    parts: list[bytes] = []
    rows = zip(
        metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"], metadata["tokenizer.ggml.token_type"], strict=True
    )
    for i, (piece, score, kind) in enumerate(rows):
        if kind == 4:
            piece = piece.replace(" ", "▁")  # GGUF writes user-defined tokens as they are typed
        body = field(1, piece.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", score) + integer(3, 2 if i == unknown else kind)
        parts.append(field(1, body))
    minus_one = 2**64 - 1
    trainer = integer(3, 2) + integer(35, 1) + integer(40, unknown) + b"".join(integer(n, minus_one) for n in (41, 42, 43))
    prefix = int(metadata.get("tokenizer.ggml.add_space_prefix", True))
    normalizer = field(1, b"identity") + integer(3, prefix) + integer(4, 0) + integer(5, 1)
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(b"".join(parts) + field(2, trainer) + field(3, normalizer))
    return processor.EncodeAsIds


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
