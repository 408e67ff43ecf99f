"""A load on any server that speaks OpenAI's completions: N clients, each sending its next prompt when its answer has ended.

    python benchmarks/load.py URL [--model NAME] [--clients 16] [--prompts 64] [--tokens 64] [--seed 0] [--tokenizer FILE]
                              [--timelines FILE] [--json]

Prompts: ShareGPT, at most 256 tokens of the tokenizer of a GGUF file, drawn by the seed. Answers are greedy and streamed, and
have exactly --tokens tokens (ignore_eos). Every request's timeline is kept: --timelines writes them, one JSON object a line.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

import sharegpt
from material import NAMES, model_path, tokenizer_of


@dataclass
class Timeline:
    """One request, in seconds since the load began. ``arrivals``: of each piece of the answer that had text; ``tokens``: by the
    server's own count."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0

    @property
    def first_token(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(frozen=True)
class Asked:
    """What every request asks for."""

    url: str
    model: str
    tokens: int


async def run(asked: Asked, prompts: Sequence[str], clients: int) -> list[Timeline]:
    """Answers to all prompts, in their order."""
    waiting = list(enumerate(prompts))[::-1]
    timelines: dict[int, Timeline] = {}
    start = time.perf_counter()

    async def client(http: httpx2.AsyncClient) -> None:
        while waiting:
            number, prompt = waiting.pop()
            timelines[number] = await _one(http, asked, prompt, start)

    # A connection for each request: llama-server closes the ones it has kept, sometimes just when the next request is sent.
    limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=0)
    async with httpx2.AsyncClient(timeout=None, limits=limits, trust_env=False) as http, asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client(http))
    return [timelines[number] for number in range(len(prompts))]


async def _one(http: httpx2.AsyncClient, asked: Asked, prompt: str, start: float) -> Timeline:
    body = {"model": asked.model, "prompt": prompt, "max_tokens": asked.tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    timeline = Timeline(time.perf_counter() - start)
    async with http.stream("POST", f"{asked.url}/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{asked.url} answered {response.status_code}: {(await response.aread())[:500]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event: Mapping[str, Any] = json.loads(line[6:])
            if any(choice.get("text") for choice in event.get("choices", ())):
                timeline.arrivals.append(time.perf_counter() - start)
            if event.get("usage"):
                timeline.tokens = event["usage"]["completion_tokens"]
    timeline.ended = time.perf_counter() - start
    if timeline.tokens != asked.tokens or not timeline.arrivals:
        raise RuntimeError(f"{asked.url} gave {timeline.tokens} tokens in {len(timeline.arrivals)} pieces, asked {asked.tokens}")
    return timeline


def summary(timelines: Sequence[Timeline]) -> dict[str, float]:
    """Output tokens a second over the whole load; time to first token and between pieces of text in milliseconds."""
    seconds = max(one.ended for one in timelines) - min(one.sent for one in timelines)
    first = np.array([one.first_token for one in timelines]) * 1000
    gaps = np.array([gap for one in timelines for gap in one.gaps]) * 1000
    return {
        "output_rate": round(sum(one.tokens for one in timelines) / seconds, 2),
        **{f"ttft_p{p}": round(float(np.percentile(first, p)), 1) for p in (50, 90, 99)},
        **{f"itl_p{p}": round(float(np.percentile(gaps, p)), 1) for p in (50, 99)},
        "seconds": round(seconds, 2),
    }


def write_timelines(file: Path, timelines: Sequence[Timeline], **label: object) -> None:
    with file.open("a") as out:
        for one in timelines:
            arrivals = [round(at, 5) for at in one.arrivals]
            record = {
                **label,
                "sent": round(one.sent, 5),
                "arrivals": arrivals,
                "ended": round(one.ended, 5),
                "tokens": one.tokens,
            }
            out.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("--model", default="model", help="the name the server knows the model by")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", default=NAMES[2], metavar="NAME", help="catalogue name or GGUF file")
    parser.add_argument("--timelines", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    texts = sharegpt.prompts(tokenizer_of(model_path(args.tokenizer)), args.prompts, args.seed)
    timelines = asyncio.run(run(Asked(args.url.rstrip("/"), args.model, args.tokens), texts, args.clients))
    if args.timelines:
        write_timelines(args.timelines, timelines, clients=args.clients)
    result = {"clients": args.clients, **summary(timelines)}
    print(json.dumps(result) if args.json else "  ".join(f"{name} {value:g}" for name, value in result.items()))


if __name__ == "__main__":
    main()
