"""Transformers' float32 logits of the catalogue's models on prose and code, teacher-forced; computed once and kept outside the
repository. The weights are the file's own, dequantised by transformers.
"""

import argparse
import hashlib
import inspect
import os
import pydoc_data.topics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from support import models
from tuili.text.tokenizer.load import load_tokenizer
from tuili.weights.gguf import open_gguf

#: Positions compared: a few hundred in the tests; 2,048 and more for the published figures.
NUM_TOKENS = int(os.environ.get("TUILI_ORACLE_TOKENS", "384"))


@dataclass(frozen=True)
class Case:
    """Two sequences of a model, prose and code, and what transformers gives for each of their positions."""

    name: str
    path: Path
    tokens: tuple[list[int], list[int]]
    logits: tuple[np.ndarray, np.ndarray]


def load_case(name: str, num_tokens: int = NUM_TOKENS) -> Case:
    """Skips the calling test when the model is not here."""
    path = models.path(name)
    tokens = _tokens(path, num_tokens // 2)
    kept = [_cache(path, sequence) for sequence in tokens]
    if not all(file.is_file() for file in kept):
        _compute(path, tokens, kept)
    prose, code = (np.load(file, mmap_mode="r") for file in kept)
    return Case(name, path, tokens, (prose, code))


def _tokens(path: Path, count: int) -> tuple[list[int], list[int]]:
    """Prose and code that every Python installation has, so that none has to be kept here. Begins with BOS where the model
    wants it: transformers' own tokenizer of a GGUF file leaves Gemma's out."""
    source = open_gguf(path)
    tokenizer = load_tokenizer(source.metadata)
    source.close()
    topics = pydoc_data.topics.topics
    prose = "".join(topics[name] for name in sorted(topics)[:20])
    code = inspect.getsource(argparse)
    first, second = (tokenizer.encode(text)[:count] for text in (prose, code))
    return list(first), list(second)


def _cache(path: Path, tokens: list[int]) -> Path:
    key = hashlib.sha256(f"{path.name} {path.stat().st_size} {tokens}".encode()).hexdigest()[:16]
    return Path.home() / ".cache" / "tuili-tests" / "oracle" / f"{path.stem}-{key}.npy"


def _compute(path: Path, tokens: tuple[list[int], list[int]], kept: list[Path]) -> None:
    import transformers

    import torch

    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    for sequence, file in zip(tokens, kept, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([sequence])).logits[0].numpy()
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".part.npy")
        np.save(unfinished, logits)
        unfinished.rename(file)
