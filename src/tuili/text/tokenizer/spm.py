"""SentencePiece-style BPE (``tokenizer.ggml.model`` "llama"): merges follow from scores, bytes stand in for the unknown."""

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers

from tuili.errors import ModelFileError, NotSupported
from tuili.text.tokenizer.vocabulary import NORMAL, Vocabulary

SPACE = "▁"  # LOWER ONE EIGHTH BLOCK, SentencePiece's visible space

Cuts = npt.NDArray[np.int32]


def build(vocabulary: Vocabulary, cache_dir: Path | None) -> Tokenizer:
    """A tokenizer for text without control tokens. Raises NotSupported when the file has no scores."""
    if not vocabulary.scores:
        raise NotSupported("the file has no tokenizer.ggml.scores, which a llama tokenizer needs; convert the model again")
    tokens = vocabulary.tokens
    unknown = vocabulary.unknown_token_id
    vocab = vocabulary.text_ids() | ({tokens[unknown]: unknown} if unknown is not None else {})
    try:
        model = models.BPE(
            vocab=vocab,
            merges=merges(vocabulary, cache_dir),
            unk_token=tokens[unknown] if unknown is not None else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    except Exception as error:  # the library raises a bare Exception
        raise ModelFileError(f"tokenizer.ggml.scores and tokens do not make a tokenizer: {error}") from error
    tokenizer = Tokenizer(model)
    replace = normalizers.Replace(" ", SPACE)
    prefix = [normalizers.Prepend(SPACE)] if vocabulary.add_space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, replace])
    return tokenizer


def merges(vocabulary: Vocabulary, cache_dir: Path | None) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best score first.

    SentencePiece merges the adjacent pair whose union has the highest score (google/sentencepiece, src/bpe_model.cc); listing
    the pairs by descending score gives the BPE model the same order.
    """
    tokens, types = vocabulary.tokens, vocabulary.types
    known = {tokens[i] for i in range(len(tokens)) if types[i] == NORMAL and i not in vocabulary.control}
    order: list[int] = np.argsort(-np.asarray(vocabulary.scores, np.float64), kind="stable").tolist()
    pieces = [tokens[i] for i in order if tokens[i] in known]
    path = cache_dir / f"merges-{vocabulary.digest()[:32]}.bin" if cache_dir is not None else None
    cuts = _read(path) if path is not None else None
    if cuts is not None:
        return _cut(pieces, cuts)
    cuts = _possible_cuts(pieces)
    pairs = _cut(pieces, cuts)
    right = [left in known and right in known for left, right in pairs]
    if path is not None:
        _write(path, cuts[:, right])
    return [pair for pair, is_right in zip(pairs, right, strict=True) if is_right]


def _cut(pieces: Sequence[str], cuts: Cuts) -> list[tuple[str, str]]:
    chosen = map(pieces.__getitem__, cuts[0].tolist())
    return [(piece[:at], piece[at:]) for piece, at in zip(chosen, cuts[1].tolist(), strict=True)]


def _possible_cuts(pieces: Sequence[str]) -> Cuts:
    """[2, cuts]: piece and position of every cut whose two halves are probably pieces; none is missed.

    Polynomial hashes of all heads and tails, taken from one running sum modulo 2**64, are looked up in a table of bits; the
    exact look-up that follows sees a third of the cuts.
    """
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    text = np.frombuffer("".join(pieces).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    base = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
    up, down = _powers(base, len(text)), _powers(pow(base, -1, 2**64), len(text))
    sums = np.zeros(len(text) + 1, np.uint64)
    np.cumsum((text + 1) * up[:-1], out=sums[1:])

    def bucket(start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return ((sums[end] - sums[start]) * down[start] * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(40)

    table = np.zeros(1 << 24, np.bool_)
    table[bucket(starts, ends)] = True
    piece, at = np.repeat(np.arange(len(pieces)), lengths), np.arange(len(text))
    keep = at > starts[piece]
    piece, at = piece[keep], at[keep]
    keep = table[bucket(starts[piece], at)]
    piece, at = piece[keep], at[keep]
    keep = table[bucket(at, ends[piece])]
    piece, at = piece[keep], at[keep]
    return np.stack([piece, at - starts[piece]]).astype(np.int32)


def _powers(base: int, count: int) -> npt.NDArray[np.uint64]:
    factors = np.full(count + 1, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _read(path: Path) -> Cuts | None:
    """The cached cuts; None when there are none, or the file is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        return None
    return np.frombuffer(body, np.dtype("<i4")).reshape(2, -1)


def _write(path: Path, cuts: Cuts) -> None:
    """Write all or nothing; a cache that cannot be written costs the next start half a second and nothing else."""
    body = cuts.astype("<i4").tobytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        unfinished.write_bytes(hashlib.sha256(body).digest() + body)
        os.replace(unfinished, path)
    except OSError:
        return


def token_bytes(token: str) -> bytes:
    """The bytes that a normal token stands for: its text with spaces visible as spaces."""
    return token.replace(SPACE, " ").encode()
