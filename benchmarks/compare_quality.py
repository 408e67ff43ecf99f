"""How close the quantised arithmetic stays to float32, beside llama.cpp's, on the same text.

    python benchmarks/compare_quality.py [--json] [--models NAME ...] [--backend cpu] [--llama-bin FOLDER]

Oracle: transformers on torch, float32, the same dequantised weights, teacher-forced on 2,048 tokens of prose and code. Figures:
mean Kullback-Leibler divergence KL(oracle || engine) in nats a token; argmax agreement at all positions and where the oracle's
best two logits are more than 0.5 apart; mean cosine of the logits. llama.cpp runs with flash attention off and on; its lower
divergence counts. "ratio" is our divergence over theirs (at most 1.25), "spread" the range of the windows' ratios.
"""

import argparse
import json
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import machine
from material import NAMES, Window, model_path, tokenizer_of, windows
from oracle import Logits, oracle_logits
from peers.llama_cpp import LlamaCpp, Peer, cache, find_or_build
from support.steps import Sequences, limits_for
from tuili import __version__
from tuili.backends.select import select_backend
from tuili.models.load import bind, read_model
from tuili.weights.gguf import open_gguf

LENGTH, PER_KIND = 512, 2
#: Rows compared, or computed by us, at a time: vocabularies are large.
ROWS = 64


@dataclass(frozen=True)
class Closeness:
    """One entry a token."""

    divergence: npt.NDArray[np.float64]
    same_argmax: npt.NDArray[np.bool_]
    clear: npt.NDArray[np.bool_]
    cosine: npt.NDArray[np.float64]


def closeness(expected: Logits, actual: Callable[[int, int], Logits]) -> Closeness:
    """``actual(start, stop)`` gives those rows."""
    parts = [
        _rows_closeness(expected[i : i + ROWS], actual(i, min(i + ROWS, len(expected)))) for i in range(0, len(expected), ROWS)
    ]
    return join(parts)


def join(parts: Sequence[Closeness]) -> Closeness:
    fields = ("divergence", "same_argmax", "clear", "cosine")
    return Closeness(*(np.concatenate([getattr(part, field) for part in parts]) for field in fields))


def _rows_closeness(expected: Logits, actual: Logits) -> Closeness:
    p, q = expected.astype(np.float64), actual.astype(np.float64)
    cosine = (p * q).sum(1) / np.linalg.norm(p, axis=1) / np.linalg.norm(q, axis=1)
    second, first = np.sort(np.partition(p, -2, axis=1)[:, -2:], axis=1).T
    same = p.argmax(1) == q.argmax(1)
    log_p, log_q = _log_softmax(p), _log_softmax(q)
    return Closeness((np.exp(log_p) * (log_p - log_q)).sum(1), same, first - second > 0.5, cosine)


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def measure_ours(
    path: Path, backend_name: str, threads: int, texts: Sequence[Window], expected: Sequence[Logits]
) -> list[Closeness]:
    backend, why = select_backend(backend_name, isa=None, threads=threads)  # type: ignore[arg-type]
    source = open_gguf(path)
    model = read_model(source)
    limits = limits_for(model.program, max_model_len=LENGTH, max_num_seqs=1, max_tokens=ROWS)
    executable = bind(model, source, backend, limits)
    print(f"  ours: {why}; {dict(executable.description)}", file=sys.stderr)
    results: list[Closeness] = []
    for window, logits in zip(texts, expected, strict=True):
        feed = Sequences(executable, model.program, limits)
        results.append(closeness(logits, lambda a, b, feed=feed, ids=window.ids: feed.feed({0: ids[a:b]})))
    executable.close()
    return results


def measure_theirs(
    path: Path, llama: LlamaCpp, threads: int, texts: Sequence[Window], expected: Sequence[Logits]
) -> list[Closeness]:
    """The better of flash attention off and on. Kept in the cache: it only changes with the build."""
    digest = zlib.crc32(repr(texts).encode())
    kept = [cache() / f"theirs-{llama.digest}-{path.stem}-{digest:08x}-fa{flash}.npz" for flash in (0, 1)]
    if not all(file.exists() for file in kept):
        with Peer(llama, path, threads, 2 * LENGTH) as peer:
            for flash, file in enumerate(kept):
                pairs = zip(texts, expected, strict=True)
                np.savez(file, **vars(join([_their_window(peer, window, logits, bool(flash)) for window, logits in pairs])))
    both = [Closeness(**np.load(file)) for file in kept]
    best = min(both, key=lambda one: one.divergence.mean())
    return [Closeness(*(np.split(field, len(texts))[i] for field in vars(best).values())) for i in range(len(texts))]


def _their_window(peer: Peer, window: Window, expected: Logits, flash: bool) -> Closeness:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "logits"
        peer.logits(window.ids, file, flash=flash)
        actual = np.memmap(file, np.float32, "r", shape=expected.shape)
        return closeness(expected, lambda a, b: actual[a:b])


def measure(name: str, args: argparse.Namespace, llama: LlamaCpp) -> dict[str, Any] | None:
    path = model_path(name)
    texts = windows(tokenizer_of(path), LENGTH, PER_KIND)
    print(f"{name}: oracle", file=sys.stderr)
    expected = oracle_logits(path, [window.ids for window in texts])
    theirs = measure_theirs(path, llama, args.threads, texts, expected)
    if args.prepare:
        return None
    ours = measure_ours(path, args.backend, args.threads, texts, expected)
    ratios = [float(a.divergence.mean() / b.divergence.mean()) for a, b in zip(ours, theirs, strict=True)]
    a, b = join(ours), join(theirs)
    return {
        "model": name,
        "test": "kl",
        "ours": float(a.divergence.mean()),
        "theirs": float(b.divergence.mean()),
        "ratio": round(float(a.divergence.mean() / b.divergence.mean()), 3),
        "spread": round(max(ratios) - min(ratios), 3),
        "tokens": len(a.cosine),
        "argmax": round(float(a.same_argmax.mean()), 4),
        "argmax_clear": round(float(a.same_argmax[a.clear].mean()), 4),
        "cosine": round(float(a.cosine.mean()), 6),
        "least_cosine": round(float(a.cosine.min()), 6),
        "their_argmax": round(float(b.same_argmax.mean()), 4),
        "their_cosine": round(float(b.cosine.mean()), 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")
    parser.add_argument("--models", nargs="+", default=NAMES, metavar="NAME", help="catalogue names or paths")
    parser.add_argument("--backend", default="cpu", help="cpu or reference")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prepare", action="store_true", help="only fill the cache: the oracle's and llama.cpp's part")
    parser.add_argument("--llama-bin", type=Path, help="bin folder of a llama.cpp build; without it one is built in the cache")
    args = parser.parse_args()
    llama = find_or_build(args.llama_bin)
    print(f"{machine.describe()}\ntuili {__version__}; {llama.version}", file=sys.stderr)
    if not args.json:
        print(f"{'model':22} {'ours':>9} {'theirs':>9} {'ratio':>6}  argmax  (clear)  cosine    theirs: argmax  cosine")
    for name in args.models:
        row = measure(name, args, llama)
        if row is None:
            continue
        text = "{model:22} {ours:9.6f} {theirs:9.6f} {ratio:6.2f}  {argmax:6.2%}  {argmax_clear:7.2%}  {cosine:.6f}"
        their_text = "          {their_argmax:6.2%}  {their_cosine:.6f}"
        print(json.dumps(row) if args.json else (text + their_text).format(**row), flush=True)


if __name__ == "__main__":
    main()
