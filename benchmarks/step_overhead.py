"""Python's part of a step: everything outside the native call, with streams attached.

    python benchmarks/step_overhead.py [--json] [--streams 16 256] [--tokens 200]

N clients stream chat completions, with stop strings, from the real application (called as ASGI in this process, so that only the
socket is missing) around the fake backend. Counted is CPU time, on both threads: the engine's between two calls of the backend
(record, schedule, fill arrays), and the event loop's for that step (detokenise, stop strings, chunks, server-sent events). The
backend's own time does not count. Only steps in which all N streams advance count.

"engine" and "loop" are medians in milliseconds, "ours" the median of their sum, "mean" its mean; "theirs" is the bar. The part of
the loop runs while the backend computes, so this is the most that a step can lose, not what it does lose.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import uvicorn

import machine
import material  # noqa: F401  (puts the tests' support modules on the path)
from support.fake_model import fake_engine
from tuili import __version__
from tuili.backends.base import SamplingBatch, StepInput, StepResult
from tuili.backends.fake import FakeExecutable
from tuili.config.options import ServerOptions
from tuili.engine.runner import Runner
from tuili.server.app import create_app
from tuili.server.service import Service

#: Milliseconds allowed a step, by number of streams.
BARS = {16: 2.0, 256: 12.0}
STOP = ["\n\nQuestion:", "never said", "<|unlikely|>"]


@dataclass
class Clock:
    """CPU seconds of both threads at each step. ``loop``: the event loop on which the streams are read."""

    loop: asyncio.AbstractEventLoop
    rows: list[int] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    event_loop: list[float] = field(default_factory=list)
    left_call_at: float = 0.0

    def enter_call(self, num_rows: int) -> None:
        self.rows.append(num_rows)
        self.engine.append(time.thread_time() - self.left_call_at)

    def leave_call(self) -> None:
        self.left_call_at = time.thread_time()
        self.loop.call_soon_threadsafe(lambda: self.event_loop.append(time.thread_time()))


class TimedExecutable:
    """The fake backend's executable, between two looks at the clock."""

    def __init__(self, inner: FakeExecutable, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self.close = inner.close

    def launch(self, step: StepInput, sampling: SamplingBatch) -> StepResult:
        self._clock.enter_call(len(step.logit_rows))
        return self._inner.launch(step, sampling)

    def collect(self, handle: StepResult) -> StepResult:
        result = self._inner.collect(handle)
        self._clock.leave_call()
        return result


async def stream(app: Any, prompt: str, num_tokens: int) -> int:
    """One client; returns how many bytes of events it got."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "max_tokens": num_tokens,
        "stop": STOP,
        "temperature": 0,
    }
    request = {"type": "http.request", "body": json.dumps(body | {"ignore_eos": True}).encode(), "more_body": False}
    unread = [request]
    received = 0

    async def receive() -> dict[str, Any]:
        if not unread:
            await asyncio.get_running_loop().create_future()  # the client stays to the end
        return unread.pop()

    async def send(message: dict[str, Any]) -> None:
        nonlocal received
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        received += len(message.get("body", b""))

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "headers": headers,
    }
    place = {"path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"", "root_path": ""}
    await app({**scope, **place, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000)}, receive, send)
    return received


async def run(num_streams: int, num_tokens: int) -> Clock:
    blocks = num_streams * (num_tokens + 64) // 16 + num_streams
    loaded = fake_engine(
        max_num_seqs=num_streams,
        max_num_batched_tokens=max(512, num_streams),
        max_model_len=num_tokens + 64,
        max_waiting_requests=num_streams,
        num_blocks=(blocks,),
        seconds_per_step=0.005 + num_streams / 8000,  # as long as a real step would leave the loop alone
    )
    clock = Clock(asyncio.get_running_loop())
    runner: Runner = loaded.engine._runner  # the clock belongs exactly here
    runner._executable = TimedExecutable(runner._executable, clock)  # type: ignore[assignment, arg-type]
    service = Service("fake", ServerOptions())
    service.become_ready(loaded)
    app = create_app(service)
    gc.collect()
    gc.freeze()  # as the server does once it has loaded
    sizes = await asyncio.gather(*[stream(app, f"Tell me about the number {i}.", num_tokens) for i in range(num_streams)])
    assert min(sizes) > 50 * num_tokens, "the streams did not carry their tokens"
    loaded.close()
    return clock


def measure(num_streams: int, num_tokens: int) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=uvicorn.Config("app").get_loop_factory()) as runner:  # the server's own event loop
        clock = runner.run(run(num_streams, num_tokens))
    # Entry i of `engine` precedes call i; the loop handles step i between its looks i and i + 1.
    steps = [
        (1000 * clock.engine[i + 1], 1000 * (clock.event_loop[i + 1] - clock.event_loop[i]))
        for i in range(len(clock.event_loop) - 1)
        if clock.rows[i] == clock.rows[i + 1] == num_streams
    ]
    assert len(steps) > num_tokens // 2, f"only {len(steps)} full steps"
    totals = [engine + loop for engine, loop in steps]
    return {
        "model": "fake",
        "test": f"step{num_streams}",
        "ours": round(statistics.median(totals), 3),
        "theirs": BARS.get(num_streams),
        "mean": round(statistics.mean(totals), 3),
        "engine": round(statistics.median(engine for engine, _ in steps), 3),
        "loop": round(statistics.median(loop for _, loop in steps), 3),
        "steps": len(steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")
    parser.add_argument("--streams", nargs="+", type=int, default=[16, 256])
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    print(f"{machine.describe()}\ntuili {__version__}; {machine.probe()}", file=sys.stderr)
    for num_streams in args.streams:
        row = measure(num_streams, args.tokens)
        text = "{test}: {ours} ms a step (bar {theirs}): engine {engine}, event loop {loop}; mean {mean}; {steps} steps"
        print(json.dumps(row) if args.json else text.format(**row), flush=True)


if __name__ == "__main__":
    main()
