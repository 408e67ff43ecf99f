"""Servers side by side under the same load: rounds in which each side takes its turn with every number of clients."""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import load
import machine
import sharegpt
from material import kv_bytes_per_token, tokenizer_of
from pairs import judged, say
from servers import Server, ServerCommand, free_port

#: Prompt and answer of the largest request fit in.
CONTEXT = 512
#: Output tokens a second (at least), p90 of the time to the first token at the most clients, peak memory less KV (at most).
LLAMA_SERVER_BARS = {"rate": 3.0, "ttft": 0.4, "memory": 1.0}
VLLM_BARS = {"rate": 1.5, "memory": 1.0}
#: Makes the command that serves a number of clients on a port.
Side = Callable[[int, int], ServerCommand]


@dataclass(frozen=True)
class Load:
    """``clients``: numbers of them; each round runs all. Every number of clients has prompts of its own."""

    clients: tuple[int, ...]
    rounds: int
    num_prompts: int
    tokens: int
    seed: int
    timelines: Path | None
    context: int = CONTEXT


@dataclass
class Measured:
    """Of one side. ``loads``: number of clients -> one summary a round; ``memory``: peak bytes less KV, a round."""

    loads: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)

    def median(self, clients: int, figure: str) -> float:
        return statistics.median(one[figure] for one in self.loads[clients])

    @property
    def best(self) -> int:
        """The number of clients at which it gives the most tokens."""
        return max(self.loads, key=lambda clients: self.median(clients, "output_rate"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", nargs="+", type=int, default=[4, 8, 16], help="servers: numbers of clients")
    parser.add_argument("--rounds", type=int, default=3, help="servers")
    parser.add_argument("--prompts", type=int, default=64, help="servers: ShareGPT prompts, drawn by --seed")
    parser.add_argument("--tokens", type=int, default=64, help="servers: of each answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timelines", type=Path, metavar="FILE", help="servers: every request's timeline goes there")


def load_from(args: argparse.Namespace) -> Load:
    return Load(tuple(args.clients), args.rounds, args.prompts, args.tokens, args.seed, args.timelines)


def ours(path: Path, threads: int, most_clients: int, context: int) -> Side:
    """``tuili serve`` with room for the most clients there will be."""
    kv_bytes = most_clients * context * kv_bytes_per_token(path)

    def command(port: int, clients: int) -> ServerCommand:
        options = {
            "--port": port,
            "--threads": threads,
            "--max-model-len": context,
            "--max-num-seqs": most_clients,
            "--kv-cache-memory-bytes": kv_bytes,
            "--served-model-name": "model",
            "--log-level": "warning",
        }
        program = [sys.executable, "-m", "tuili", "serve", str(path)]
        words = (*program, *(str(part) for pair in options.items() for part in pair))
        return ServerCommand("tuili", words, port, kv_bytes, ready="/ready")

    return command


def compare(
    name: str, path: Path, peer_name: str, peer: Side, threads: int, load_: Load, bars: Mapping[str, float]
) -> Iterator[dict[str, Any]]:
    """Yields rows: rates and latencies at each number of clients, each side's best rate, memory."""
    tokenizer = tokenizer_of(path)
    texts = sharegpt.prompts(tokenizer, load_.num_prompts * (len(load_.clients) + 1), load_.seed)
    sides = {"ours": ours(path, threads, max(load_.clients), load_.context), peer_name: peer}
    measured = {side: Measured() for side in sides}
    for number in range(1, load_.rounds + 1):
        for side, make in sides.items():
            _turn(side, make, texts, load_, number, measured[side])
    yield from _rows(name, peer_name, measured["ours"], measured[peer_name], bars)


def _turn(side: str, make: Side, texts: Sequence[str], load_: Load, number: int, into: Measured) -> None:
    """One round of one side. A server that is the same for every number of clients stays up."""
    port = free_port()
    server: Server | None = None
    try:
        for index, clients in enumerate(load_.clients):
            command = make(port, clients)
            if server is None or server.command != command:
                if server is not None:
                    server.__exit__()
                server = Server(command).__enter__()
                _answers(server, texts[-clients:], clients, 8)  # warms it up
            chosen = texts[index * load_.num_prompts : (index + 1) * load_.num_prompts]
            timelines = _answers(server, chosen, clients, load_.tokens)
            if load_.timelines:
                load.write_timelines(load_.timelines, timelines, side=side, round=number, clients=clients)
            into.loads.setdefault(clients, []).append(load.summary(timelines))
            say(f"  round {number}, {side}, {clients} clients: {into.loads[clients][-1]}; {machine.load()}")
        assert server is not None
        into.memory.append(server.peak_memory() - server.command.kv_bytes)
    finally:
        if server is not None:
            server.__exit__()


def _answers(server: Server, texts: Sequence[str], clients: int, tokens: int) -> list[load.Timeline]:
    return asyncio.run(load.run(load.Asked(server.url, "model", tokens), texts, clients))


def _rows(name: str, peer: str, a: Measured, b: Measured, bars: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    def result(test: str, ours: float, theirs: float, digits: int = 1) -> dict[str, Any]:
        ratio = round(ours / theirs, 3)
        return {"model": name, "test": test, "ours": round(ours, digits), "theirs": round(theirs, digits), "ratio": ratio}

    for clients in a.loads:
        for figure in ("output_rate", "ttft_p50", "ttft_p90", "ttft_p99", "itl_p50", "itl_p99"):
            one = result(f"{peer} {clients} {figure}", a.median(clients, figure), b.median(clients, figure))
            most = figure == "ttft_p90" and clients == max(a.loads)
            yield judged(one, bars.get("ttft") if most else None, at_most=True)
    best = result(f"{peer} best rate", a.median(a.best, "output_rate"), b.median(b.best, "output_rate"))
    yield judged({**best, "spread": _spread(a, b), "clients": [a.best, b.best]}, bars.get("rate"))
    memory = result(f"{peer} memory MB", *(statistics.median(side.memory) / 1e6 for side in (a, b)))
    yield judged(memory, bars.get("memory"), at_most=True)


def _spread(a: Measured, b: Measured) -> float:
    rates = [[one["output_rate"] for one in side.loads[side.best]] for side in (a, b)]
    ratios = [x / y for x, y in zip(*rates, strict=True)]
    return round((max(ratios) - min(ratios)) / statistics.median(ratios), 3)
