"""Prompt and generation speed beside llama.cpp on the same machine, with the same token ids and threads.

    python benchmarks/compare_llama_cpp.py [--json] [--models NAME ...] [--pairs 5] [--llama-bin FOLDER]

Per model, both engines stay loaded and take turns, ``--pairs`` times: prompt of 512 tokens, then generation of 128 from an empty
context. Ours is ``tuili.LLM`` in this process: scheduler, sampler and detokeniser included. Theirs is libllama through a driver
that times as llama-bench does (no sampling), with flash attention off and on; the better median counts. Its generation replays
the token ids that ours chose.

"ours" and "theirs" are medians in tokens a second, "ratio" is ours over theirs, "spread" the range of the pairs' ratios relative
to their median.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
from material import NAMES, model_path, random_ids, tokenizer_of
from peers.llama_cpp import LlamaCpp, Peer, find_or_build
from tuili import LLM, SamplingParams, __version__

PROMPT, GENERATE = 512, 128
CONTEXT = 1024
#: Lets the other side's worker threads fall asleep.
PAUSE = 0.05
Rates = dict[str, list[float]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def time_ours(llm: LLM, prompt: Sequence[int], max_tokens: int) -> tuple[float, list[int]]:
    """Seconds, and the ids that were chosen."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    start = time.perf_counter()
    result = llm.generate([list(prompt)], params)[0]
    seconds = time.perf_counter() - start
    chosen = list(result.outputs[0].token_ids)
    assert len(chosen) == max_tokens, result
    return seconds, chosen


def one_pair(llm: LLM, peer: Peer, prompt: Sequence[int], rates: Rates) -> None:
    seconds, _ = time_ours(llm, prompt, 1)
    rates["ours pp"].append(PROMPT / seconds)
    time.sleep(PAUSE)
    for flash in (False, True):
        rates[f"theirs pp {flash}"].append(PROMPT / peer.prompt(prompt, flash=flash))
    time.sleep(PAUSE)
    seconds, chosen = time_ours(llm, prompt[:1], GENERATE)
    rates["ours tg"].append(GENERATE / seconds)
    time.sleep(PAUSE)
    fed = [prompt[0], *chosen[:-1]]
    for flash in (False, True):
        rates[f"theirs tg {flash}"].append(GENERATE / peer.generate(fed, flash=flash))
    time.sleep(PAUSE)


def measure(name: str, llama: LlamaCpp, threads: int, pairs: int) -> list[dict[str, Any]]:
    path = model_path(name)
    tokenizer = tokenizer_of(path)
    with (
        LLM(path, threads=threads, max_model_len=CONTEXT, max_num_batched_tokens=PROMPT) as llm,
        Peer(llama, path, threads, CONTEXT) as peer,
    ):
        say(f"{name}: {dict(llm.loaded.report)}")
        one_pair(llm, peer, random_ids(tokenizer, PROMPT, 0), _no_rates())  # warms both up
        rates = _no_rates()
        for number in range(pairs):
            one_pair(llm, peer, random_ids(tokenizer, PROMPT, 1 + number), rates)
            say(f"  pair {number + 1}: {_latest(rates)}; {machine.probe()}")
    return [_row(name, "pp512", rates, "pp"), _row(name, "tg128", rates, "tg")]


def _no_rates() -> Rates:
    keys = [f"{side} {kind}" for kind in ("pp", "tg") for side in ("ours", "theirs")]
    return {key + flash: [] for key in keys for flash in ([""] if key.startswith("ours") else [" False", " True"])}


def _latest(rates: Rates) -> str:
    return ", ".join(f"{key.replace('False', 'fa=0').replace('True', 'fa=1')} {values[-1]:.1f}" for key, values in rates.items())


def _row(name: str, test: str, rates: Rates, kind: str) -> dict[str, Any]:
    ours = rates[f"ours {kind}"]
    theirs = max((rates[f"theirs {kind} {flash}"] for flash in (False, True)), key=statistics.median)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "model": name,
        "test": test,
        "ours": round(statistics.median(ours), 2),
        "theirs": round(statistics.median(theirs), 2),
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 3),
        "spread": round((max(ratios) - min(ratios)) / statistics.median(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")
    parser.add_argument("--models", nargs="+", default=NAMES, metavar="NAME", help="catalogue names or paths")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-bin", type=Path, help="bin folder of a llama.cpp build; without it one is built in the cache")
    args = parser.parse_args()
    llama = find_or_build(args.llama_bin)
    say(f"{machine.describe()}\ntuili {__version__}; {llama.version}; {args.threads} threads; {machine.probe()}")
    if not args.json:
        print(f"{'model':22} {'test':6} {'ours':>9} {'theirs':>9} {'ratio':>6} {'spread':>6}")
    for name in args.models:
        for row in measure(name, llama, args.threads, args.pairs):
            text = "{model:22} {test:6} {ours:9.1f} {theirs:9.1f} {ratio:6.2f} {spread:6.2f}".format(**row)
            print(json.dumps(row) if args.json else text, flush=True)


if __name__ == "__main__":
    main()
