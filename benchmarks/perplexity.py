"""Perplexity of a fixed text as llama-perplexity counts it, by both engines on the same tokens.

Windows of 512 tokens, half prose and half code, each from an empty context; counted are the tokens of the second half of each
window (the model always has some context), the perplexity is e to the mean of minus their log-likelihoods.
"""

import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from material import Window
from peers.llama_cpp import LlamaCpp, Peer, cache
from support.steps import Sequences, limits_for
from tuili.backends.select import select_backend
from tuili.models.load import bind, read_model
from tuili.weights.gguf import open_gguf

LENGTH, PER_KIND = 512, 4
FIRST = LENGTH // 2
#: Rows of logits computed by us at a time: vocabularies are large.
ROWS = 64


def ours(path: Path, threads: int, texts: Sequence[Window]) -> float:
    """Nats a token: the logarithm of the perplexity."""
    backend, _ = select_backend("cpu", isa=None, threads=threads)
    source = open_gguf(path)
    model = read_model(source)
    limits = limits_for(model.program, max_model_len=LENGTH, max_num_seqs=1, max_tokens=ROWS)
    executable = bind(model, source, backend, limits)
    total = 0.0
    for text in texts:
        feed = Sequences(executable, model.program, limits)
        for start in range(0, LENGTH, ROWS):
            ids = text.ids[start : start + ROWS]
            logits = feed.feed({0: ids}, all_rows=start + ROWS > FIRST)
            if start + ROWS > FIRST:
                total += _surprise(logits, text.ids[start + 1 : start + ROWS + 1], max(FIRST - start, 0))
    executable.close()
    return total / _counted(texts)


def theirs(path: Path, llama: LlamaCpp, threads: int, texts: Sequence[Window]) -> float:
    """Likewise, with flash attention, which is llama-perplexity's own choice. Kept in the cache."""
    kept = cache() / f"nll-{llama.digest}-{path.stem}-{path.stat().st_size}-{zlib.crc32(repr(texts).encode()):08x}.json"
    if not kept.exists():
        with Peer(llama, path, threads, LENGTH) as peer:
            total = sum(peer.nll(text.ids, FIRST, flash=True) for text in texts)
        kept.write_text(json.dumps(total / _counted(texts)))
    return float(json.loads(kept.read_text()))


def _counted(texts: Sequence[Window]) -> int:
    return sum(len(text.ids) - 1 - FIRST for text in texts)


def _surprise(logits: np.ndarray, following: Sequence[int], first: int) -> float:
    """Of the tokens that follow rows ``first``, ``first`` + 1 ... The last row of a window has none that follows."""
    rows = logits[first : len(following)].astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    chosen = rows[np.arange(len(rows)), list(following)[first:]]
    return float((np.log(np.exp(rows).sum(1)) - chosen).sum())


def perplexity(nats: float) -> float:
    return math.exp(nats)
