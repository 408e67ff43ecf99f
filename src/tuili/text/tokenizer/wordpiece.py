"""WordPiece (``tokenizer.ggml.model`` "bert"): longest known pieces of each word, for encoders."""

from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tuili.errors import NotSupported
from tuili.text.tokenizer.vocabulary import Vocabulary

SPACE = "▁"  # GGUF writes the start of a word with it, and continuations bare (BERT's own files: bare, and "##")


def build(vocabulary: Vocabulary, cache_dir: Path | None) -> Tokenizer:
    """A tokenizer for text without control tokens. Raises NotSupported when the file names no unknown token."""
    tokens, unknown = vocabulary.tokens, vocabulary.unknown_token_id
    if unknown is None:
        raise NotSupported(
            "the file has no tokenizer.ggml.unknown_token_id, which a bert tokenizer needs; convert the model again"
        )
    vocab = {_piece(token): i for token, i in vocabulary.text_ids().items()}
    vocab[tokens[unknown]] = unknown
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token=tokens[unknown], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _piece(token: str) -> str:
    return token[1:] if token.startswith(SPACE) else "##" + token


def token_bytes(token: str) -> bytes:
    """The bytes that a normal token stands for: a space starts each word."""
    return token.replace(SPACE, " ", 1).encode()
