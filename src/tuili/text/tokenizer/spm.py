"""SentencePiece-style BPE (``tokenizer.ggml.model`` "llama"): merges follow from scores, bytes stand in for the unknown."""

import numpy as np
from tokenizers import Tokenizer, models, normalizers

from tuili.errors import ModelFileError, NotSupported
from tuili.text.tokenizer.vocabulary import NORMAL, Vocabulary

SPACE = "▁"  # LOWER ONE EIGHTH BLOCK, SentencePiece's visible space


def build(vocabulary: Vocabulary) -> Tokenizer:
    """A tokenizer for text without control tokens. Raises NotSupported when the file has no scores."""
    if not vocabulary.scores:
        raise NotSupported("the file has no tokenizer.ggml.scores, which a llama tokenizer needs; convert the model again")
    tokens = vocabulary.tokens
    unknown = vocabulary.unknown_token_id
    vocab = {token: i for i, token in enumerate(tokens) if i not in vocabulary.control or i == unknown}
    try:
        model = models.BPE(
            vocab=vocab,
            merges=merges(vocabulary),
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


def merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best score first.

    SentencePiece merges the adjacent pair whose union has the highest score (google/sentencepiece, src/bpe_model.cc); listing
    the pairs by descending score gives the BPE model the same order.
    """
    tokens, types = vocabulary.tokens, vocabulary.types
    known = {tokens[i] for i in range(len(tokens)) if types[i] == NORMAL and i not in vocabulary.control}
    order: list[int] = np.argsort(-np.asarray(vocabulary.scores, np.float64), kind="stable").tolist()
    pieces = [tokens[i] for i in order if tokens[i] in known]
    cuts = ((piece[:cut], piece[cut:]) for piece in pieces for cut in range(1, len(piece)))
    return [(left, right) for left, right in cuts if left in known and right in known]


def token_bytes(token: str) -> bytes:
    """The bytes that a normal token stands for: its text with spaces visible as spaces."""
    return token.replace(SPACE, " ").encode()
