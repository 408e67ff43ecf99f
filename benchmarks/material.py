"""What the benchmarks run on: model files, token ids, text that every Python installation has."""

import argparse
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

import numpy as np

from tuili.config.sources import cache_dir
from tuili.text.tokenizer.base import Tokenizer
from tuili.text.tokenizer.load import load_tokenizer
from tuili.weights.gguf import open_gguf

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the tests know where the real models lie
from support import models

NAMES = tuple(models.FILES)


def model_path(name: str) -> Path:
    """A catalogue model's file, or a path as it is; exits with a sentence when it is not here."""
    path = models.find(name) if name in models.FILES else Path(name)
    if path is None or not path.is_file():
        sys.exit(f"{name} is not here: run `python tests/support/fetch.py` (known: {', '.join(NAMES)}), or give a path")
    return path


def tokenizer_of(path: Path) -> Tokenizer:
    source = open_gguf(path)
    try:
        return load_tokenizer(source.metadata, cache_dir() / "tokenizers")
    finally:
        source.close()


def kv_bytes_per_token(path: Path) -> int:
    """Of keys and values in 16 bits, over all layers."""
    source = open_gguf(path)
    try:
        arch = source.metadata["general.architecture"]
        layers, heads, kv_heads, width = (
            int(source.metadata[f"{arch}.{key}"])  # type: ignore[arg-type]
            for key in ("block_count", "attention.head_count", "attention.head_count_kv", "embedding_length")
        )
        head_size = int(source.metadata.get(f"{arch}.attention.key_length", width // heads))  # type: ignore[arg-type]
        return 2 * 2 * layers * kv_heads * head_size
    finally:
        source.close()


def bytes_read_per_token(path: Path) -> int:
    """Of weights, when one sequence decodes: every tensor, but of the token embedding only when it is the output matrix too."""
    source = open_gguf(path)
    try:
        untied = "output.weight" in source.names()
        names = [name for name in source.names() if not (untied and name == "token_embd.weight")]
        return sum(source.tensor(name).data.nbytes for name in names)
    finally:
        source.close()


def random_ids(tokenizer: Tokenizer, count: int, seed: int) -> list[int]:
    """Ordinary tokens, as llama-bench takes: begins with BOS where the model wants one."""
    rng = np.random.default_rng(seed)
    ids: list[int] = [tokenizer.bos_token_id] if tokenizer.add_bos and tokenizer.bos_token_id is not None else []
    while len(ids) < count:
        token = int(rng.integers(tokenizer.vocab_size))
        if not tokenizer.is_hidden(token):
            ids.append(token)
    return ids


@dataclass(frozen=True)
class Window:
    """A stretch of text, teacher-forced from an empty context."""

    kind: str
    ids: tuple[int, ...]


def windows(tokenizer: Tokenizer, length: int, per_kind: int) -> list[Window]:
    """``per_kind`` windows of prose (the language reference that pydoc carries) and of code (the standard library's argparse)."""
    prose = "\n\n".join(topics.topics[name] for name in ("objects", "execmodel", "with", "import", "exceptions", "typesmapping"))
    code = inspect.getsource(argparse)
    return [
        Window(kind, ids) for kind, text in (("prose", prose), ("code", code)) for ids in _cut(tokenizer, text, length, per_kind)
    ]


def _cut(tokenizer: Tokenizer, text: str, length: int, count: int) -> Sequence[tuple[int, ...]]:
    first = [tokenizer.bos_token_id] if tokenizer.add_bos and tokenizer.bos_token_id is not None else []
    body = tokenizer.encode(text, add_bos=False, parse_control=False)
    step = length - len(first)
    assert len(body) >= step * count, "the text is too short"
    return [tuple(first + body[i * step : (i + 1) * step]) for i in range(count)]
