"""Speed beside llama.cpp on the same machine, with the same token ids and threads.

    python benchmarks/compare_llama_cpp.py [--tests NAME ...] [--models NAME ...] [--pairs 5] [--json] [--llama-bin FOLDER]

Tests, and the models they take when none are named (those that have a bar):

    short        pp512: a prompt of 512 tokens; tg128: 128 tokens from an empty context         all four
    deep         pp2048: a prompt of 2,048; tg128@d2048: 128 tokens after it                    both Qwen
    batch        1 to 32 sequences that decode together (128-token prompts, 64 tokens each)     0.5B
    neighbour    pp512 and tg128 while another process burns one of the cores                   0.5B
    formats      pp512 and tg128 in every format, requantised by llama-quantize                 1.5B
    perplexity   of a fixed text                                                                all four
    servers      64 ShareGPT prompts over HTTP, beside llama-server                             0.5B

Both engines stay loaded and take turns, --pairs times after a warm-up (servers: --rounds). Ours is the whole library in this
process: scheduler, sampler and detokeniser included. Theirs is libllama through a driver that times as llama-bench and
llama-batched-bench do (no sampling) and replays the tokens that ours chose. Flash attention is off and on; the better counts.

"ours" and "theirs" are medians in tokens a second, "ratio" is ours over theirs, "spread" the range of the pairs' ratios over
their median, "bandwidth" the GB/s that all threads read beside our passes, "of_bandwidth" the part of it that decoding used.
"""

import argparse
import contextlib
import json
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import perplexity
import serving
from material import NAMES, bytes_read_per_token, model_path, tokenizer_of, windows
from ours import Ours
from pairs import Series, judged, row, say, shown, take_turns
from peers import llama_cpp
from peers.llama_cpp import PLAIN, QUANTISED, LlamaCpp, Peer, find_or_build
from speed_tests import FLASH, Alone, Batch, Deep, Neighbour
from tuili import __version__
from tuili.bench.probes import Prober

Row = dict[str, Any]
SMOLLM2, GEMMA, QWEN_SMALL, QWEN = NAMES
BATCHES = (1, 2, 4, 8, 16, 32)
#: (model, figure) -> the least ratio of ours over theirs.
BARS: Mapping[tuple[str, str], float] = {
    **{(name, "pp512"): 2.1 for name in NAMES},
    **{(name, "pp2048"): 2.0 for name in (QWEN_SMALL, QWEN)},
    **{(SMOLLM2, "tg128"): 1.7, (GEMMA, "tg128"): 1.6, (QWEN_SMALL, "tg128"): 1.7, (QWEN, "tg128"): 1.1},
    **{(QWEN_SMALL, "tg128@d2048"): 2.0, (QWEN, "tg128@d2048"): 1.2, (QWEN_SMALL, "batch16"): 3.2},
}
FORMAT_BARS = {"pp512": 1.5, "tg128": 1.0}
#: The part of the quiet rate that ours has to keep beside a neighbour.
KEPT_BAR = 0.45
#: Perplexities differ by at most this much.
PERPLEXITY_BAR = 0.005


@dataclass(frozen=True)
class Bench:
    """What the tests of one run share. Each test yields its rows for one model."""

    llama: LlamaCpp
    threads: int
    pairs: int
    formats: tuple[str, ...]
    serving: serving.Load
    prober: Prober

    def short(self, name: str) -> Iterator[Row]:
        return self._short(name, model_path(name), {figure: BARS.get((name, figure)) for figure in ("pp512", "tg128")})

    def deep(self, name: str) -> Iterator[Row]:
        path = model_path(name)
        with self._loaded(path, 2304) as (ours, peer):
            series = self._turns(name, Deep(ours, peer, tokenizer_of(path), 2048, 128))
        for figure in ("pp2048", "tg128@d2048"):
            yield judged(_with_limit(row(name, figure, series), path), BARS.get((name, figure)))

    def batch(self, name: str) -> Iterator[Row]:
        path = model_path(name)
        with self._loaded(path, 256, max_num_seqs=max(BATCHES)) as (ours, peer):
            for size in BATCHES:
                test = Batch(ours, peer, tokenizer_of(path), size, 128, 64)
                series = self._turns(name, test, self.pairs if size == 16 else -(-self.pairs // 2))
                yield judged(row(name, test.figure, series), BARS.get((name, test.figure)))

    def neighbour(self, name: str) -> Iterator[Row]:
        path = model_path(name)
        with self._loaded(path, 1024) as (ours, peer):
            series = self._turns(name, Neighbour(Alone(ours, peer, tokenizer_of(path), 512, 128)))
        for figure in ("pp512", "tg128"):
            yield row(name, f"{figure} neighbour", series)
            yield judged(row(name, f"{figure} kept", series), KEPT_BAR, of="ours")

    def every_format(self, name: str) -> Iterator[Row]:
        for fmt in self.formats:
            say(f"{name}: {fmt}")
            made = llama_cpp.quantised(self.llama, model_path(name), fmt)
            yield from self._short(f"{name} {fmt}", made, FORMAT_BARS if fmt in QUANTISED else {})

    def perplexity(self, name: str) -> Iterator[Row]:
        path = model_path(name)
        texts = windows(tokenizer_of(path), perplexity.LENGTH, perplexity.PER_KIND)
        ours = math.exp(perplexity.ours(path, self.threads, texts))
        theirs = math.exp(perplexity.theirs(path, self.llama, self.threads, texts))
        result = {"model": name, "test": "perplexity", "ours": round(ours, 4), "theirs": round(theirs, 4)}
        yield {**result, "ratio": round(ours / theirs, 5), "bar": PERPLEXITY_BAR, "met": abs(ours / theirs - 1) <= PERPLEXITY_BAR}

    def servers(self, name: str) -> Iterator[Row]:
        path = model_path(name)

        def peer(port: int, clients: int) -> serving.ServerCommand:
            return llama_cpp.server(self.llama, path, port, threads=self.threads, clients=clients, context=self.serving.context)

        yield from serving.compare(name, path, "llama-server", peer, self.threads, self.serving, serving.LLAMA_SERVER_BARS)

    def _short(self, label: str, path: Path, bars: Mapping[str, float | None]) -> Iterator[Row]:
        with self._loaded(path, 1024) as (ours, peer):
            series = self._turns(label, Alone(ours, peer, tokenizer_of(path), 512, 128))
        for figure in ("pp512", "tg128"):
            yield judged(_with_limit(row(label, figure, series), path), bars.get(figure))

    @contextlib.contextmanager
    def _loaded(self, path: Path, context: int, **options: Any) -> Iterator[tuple[Ours, Peer]]:
        """``context``: tokens of one sequence."""
        with (
            Ours(path, threads=self.threads, max_model_len=context, **options) as ours,
            Peer(self.llama, path, self.threads, context) as peer,
        ):
            say(f"{path.name}: {ours.report}")
            yield ours, peer

    def _turns(self, label: str, test: Alone | Deep | Batch | Neighbour, pairs: int | None = None) -> Series:
        return take_turns(
            *(test.ours, test.theirs, tuple(FLASH), pairs or self.pairs),
            bandwidth=lambda: self.prober.measure().read_bandwidth / 1e9,
            label=label,
        )


def _with_limit(result: Row, path: Path) -> Row:
    """Adds, for tokens that are decoded alone, what part of the bandwidth reading the weights took."""
    if not result["test"].startswith("tg"):
        return result
    return {**result, "of_bandwidth": round(result["ours"] * bytes_read_per_token(path) / 1e9 / result["bandwidth"], 3)}


#: Name on the command line -> the test, and the models it takes when none are named.
TESTS: Mapping[str, tuple[Callable[[Bench, str], Iterator[Row]], tuple[str, ...]]] = {
    "short": (Bench.short, NAMES),
    "deep": (Bench.deep, (QWEN_SMALL, QWEN)),
    "batch": (Bench.batch, (QWEN_SMALL,)),
    "neighbour": (Bench.neighbour, (QWEN_SMALL,)),
    "formats": (Bench.every_format, (QWEN,)),
    "perplexity": (Bench.perplexity, NAMES),
    "servers": (Bench.servers, (QWEN_SMALL,)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), choices=list(TESTS), metavar="NAME")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="catalogue names or paths; each test has its own")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    known = (*QUANTISED, *PLAIN)
    parser.add_argument("--formats", nargs="+", default=known, choices=known, metavar="FORMAT", help=", ".join(known))
    parser.add_argument("--llama-bin", type=Path, help="bin folder of a llama.cpp build; without it one is built in the cache")
    serving.add_arguments(parser)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end with us
    llama = find_or_build(args.llama_bin)
    bench = Bench(llama, args.threads, args.pairs, tuple(args.formats), serving.load_from(args), Prober(args.threads))
    limits = bench.prober.measure()
    say(f"{machine.describe()}\ntuili {__version__}; {llama.version}; {args.threads} threads; {limits}; {machine.load()}")
    for test in args.tests:
        run, models = TESTS[test]
        for name in args.models or models:
            for result in run(bench, name):
                print(json.dumps(result) if args.json else shown(result), flush=True)


if __name__ == "__main__":
    main()
