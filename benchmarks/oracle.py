"""The float32 oracle: Hugging Face transformers on torch, on the dequantised weights of a GGUF file. Logits are cached."""

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from peers.llama_cpp import cache

Logits = npt.NDArray[np.float32]


def oracle_logits(path: Path, windows: Sequence[tuple[int, ...]]) -> list[Logits]:
    """Teacher-forced logits [tokens, vocab] of each window, memory-mapped from the cache; computed when they are not in it."""
    files = [_cached(path, ids) for ids in windows]
    absent = [(ids, file) for ids, file in zip(windows, files, strict=True) if not file.exists()]
    if absent:
        _compute(path, absent)
    return [np.load(file, mmap_mode="r") for file in files]


def _cached(path: Path, ids: tuple[int, ...]) -> Path:
    digest = zlib.crc32(np.array(ids, np.int32).tobytes())
    folder = cache() / "oracle"
    folder.mkdir(exist_ok=True)
    return folder / f"{path.stem}-{path.stat().st_size}-{len(ids)}-{digest:08x}.npy"


def _compute(path: Path, absent: Sequence[tuple[tuple[int, ...], Path]]) -> None:
    import transformers

    import torch

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    model.eval()
    for ids, file in absent:
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0].numpy()
        partial = file.with_suffix(".partial.npy")
        np.save(partial, logits)
        partial.rename(file)
