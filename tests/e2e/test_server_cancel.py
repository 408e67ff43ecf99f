"""Clients that leave, crowds, and a full queue: every block comes back, every connection gets its reply."""

import asyncio
import json
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from support.fake_model import fake_engine
from support.server import MODEL, Reply, RunningServer, read_reply, running_server, wait_until
from tuili.config.options import ServerOptions
from tuili.server.app import create_app
from tuili.server.service import Service

SECONDS_PER_STEP = 0.005


@pytest.fixture
def server() -> Iterator[RunningServer]:
    engine = fake_engine(seconds_per_step=SECONDS_PER_STEP, max_model_len=4096, max_num_seqs=4, max_num_batched_tokens=64)
    with running_server(engine) as server:
        yield server


def body(**fields: Any) -> dict[str, Any]:
    return {"prompt": [5] * 20, "max_tokens": 2000, "ignore_eos": True, **fields}


def post(server: RunningServer, fields: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """Sends a request and returns its connection without reading."""
    data = json.dumps(fields).encode()
    connection = server.connect()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + data)
    return connection


def read_chunks(connection: socket.socket, number: int) -> None:
    seen = b""
    while seen.count(b"data: ") < number:
        data = connection.recv(65536)
        assert data, seen
        seen += data


def reset(connection: socket.socket) -> None:
    """Closes at once with a reset, as a killed client does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def is_idle(server: RunningServer) -> bool:
    stats = server.service.engine().client.stats()
    return (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)


def free_blocks(server: RunningServer) -> tuple[int, ...]:
    return server.service.engine().client.stats().free_blocks


@pytest.mark.parametrize("close", [socket.socket.close, reset], ids=["close", "reset"])
@pytest.mark.parametrize("phase", ["stream", "whole", "prefill", "queued"])
def test_a_client_that_leaves_is_aborted(server: RunningServer, phase: str, close: Any) -> None:
    """[D-STRM-2] streaming, not streaming, while its prompt is computed, and while it waits: blocks return, the abort counts."""
    before = free_blocks(server)
    # Four requests of others occupy all slots where this one shall be queued.
    others = [post(server, body(max_tokens=1000, stream=True)) for _ in range(4 if phase == "queued" else 0)]
    for other in others:
        read_chunks(other, 2)
    prompt = [5] * (3000 if phase == "prefill" else 20)
    connection = post(server, body(prompt=prompt, stream=phase != "whole"))
    if phase == "stream":
        read_chunks(connection, 3)
    wait_until(lambda: server.service.active == 1 + len(others), "the request has arrived")
    stats = server.service.engine().client.stats
    wait_until(lambda: stats().waiting == 1 if phase == "queued" else stats().running == 1, "the phase is reached")
    close(connection)
    wait_until(lambda: server.metrics()["tuili_request_aborts_total"] == 1, "the abort is counted", 3)
    for other in others:
        other.close()
    wait_until(lambda: is_idle(server), "all slots are free", 3)
    assert free_blocks(server) == before
    generated = server.metrics()["tuili_generation_tokens_total"]
    wait_until(lambda: server.service.active == 0, "all calls are over", 3)
    assert server.metrics()["tuili_generation_tokens_total"] == generated
    assert not server.service.running


def test_two_hundred_aborts() -> None:
    """[D-STRM-2] at random phases, mixed with requests that finish: the free blocks are those of the start."""
    engine = fake_engine(max_model_len=1024, max_num_seqs=4, max_num_batched_tokens=64, num_blocks=(120,), seconds_per_step=0.001)
    with running_server(engine) as server:
        before = free_blocks(server)
        random.seed(7)
        connections: list[socket.socket] = []
        for _ in range(200):
            prompt = [5] * random.choice((3, 20, 300, 700))
            fields = body(prompt=prompt, stream=random.random() < 0.6, n=random.choice((1, 1, 2)))
            connections.append(post(server, fields))
            if len(connections) > random.randint(0, 6):
                victim = connections.pop(random.randrange(len(connections)))
                random.choice((reset, socket.socket.close))(victim)
        for connection in connections:
            connection.close()
        assert server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2}).status == 200
        wait_until(lambda: is_idle(server) and server.service.active == 0, "everything has ended", 10)
        assert free_blocks(server) == before
        engine.engine.scheduler.kv.check()
        assert server.metrics()["tuili_request_aborts_total"] > 50


def test_metrics_return_to_zero(server: RunningServer) -> None:
    """[D-MET-1] eight streams dropped at once: the gauges fall without a further request, counters never fall, and every accepted
    request ended for exactly one reason."""
    first = server.metrics()
    connections = [post(server, body(stream=True)) for _ in range(8)]
    for connection in connections[:4]:
        read_chunks(connection, 2)
    middle = server.metrics()
    assert middle["tuili_num_requests_running"] == 4 and middle["tuili_kv_cache_usage_perc"] > 0
    assert server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": -1}).status == 400
    for connection in connections:
        connection.close()
    wait_until(lambda: is_idle(server), "idle", 3)
    last = server.metrics()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert last[f"tuili_{name}"] == 0
    reasons = {name: value for name, value in last.items() if name.startswith("tuili_request_success_total")}
    assert len(reasons) == 4 and sum(reasons.values()) == last["tuili_requests_accepted_total"] == 8
    for earlier, later in ((first, middle), (middle, last)):
        assert all(later[name] >= value for name, value in earlier.items() if "_total" in name or "_bucket" in name)


def test_a_full_queue() -> None:
    """[D-SCHED-3] 60 requests at once, 2 slots, 4 places to wait: every one is answered, the surplus at once with 429."""
    engine = fake_engine(seconds_per_step=SECONDS_PER_STEP, max_num_seqs=2, max_waiting_requests=4)
    with running_server(engine) as server:
        replies: list[Reply] = []

        def call(number: int) -> None:
            fields = body(max_tokens=20, stream=number % 2 == 0, priority=10 * (number % 3 == 0))
            with post(server, fields) as connection:
                replies.append(read_reply(connection))

        threads = [threading.Thread(target=call, args=(number,)) for number in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        statuses = Counter(reply.status for reply in replies)
        assert sum(statuses.values()) == 60 and set(statuses) == {200, 429}
        for reply in replies:
            if reply.status == 429:
                assert int(reply.headers["retry-after"]) >= 1 and reply.json["error"]["code"] == "queue_full"
        wait_until(lambda: is_idle(server), "idle", 3)
        assert server.metrics()["tuili_requests_refused_total"] == statuses[429]


def test_thirty_two_streams() -> None:
    """Each gets its own whole answer, the one it gets alone."""
    with running_server(fake_engine(max_num_seqs=32, max_model_len=512)) as server:
        client = server.openai()

        def text(number: int) -> str:
            prompt = f"request number {number}"
            stream = client.completions.create(model="fake", prompt=prompt, max_tokens=30, seed=number, stream=True)
            return "".join(chunk.choices[0].text for chunk in stream)

        alone = [text(number) for number in range(32)]
        together: dict[int, str] = {}
        threads = [threading.Thread(target=lambda n=number: together.update({n: text(n)})) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [together[number] for number in range(32)] == alone


async def test_a_reader_that_stops_reading_holds_nobody_up() -> None:
    """Its text waits in few, longer chunks; others are served meanwhile; at last it gets everything."""
    service = Service(MODEL, ServerOptions())
    service.become_ready(fake_engine(max_num_seqs=2, seconds_per_step=0.002))
    app = create_app(service)
    try:
        fast = await call_app(app, body(max_tokens=100, seed=1, stream=True))
        blocked = asyncio.Event()
        slow = asyncio.create_task(call_app(app, body(max_tokens=100, seed=1, stream=True), blocked))
        other = await call_app(app, body(max_tokens=200, seed=2, stream=True))
        assert other[-1] == b"data: [DONE]\n\n" and not slow.done()
        blocked.set()
        chunks = await slow
        assert chunks[-1] == fast[-1] == b"data: [DONE]\n\n"
        assert len(chunks) < 20 < len(fast)
        assert text_of(chunks) == text_of(fast)
    finally:
        service.engine().close()


def text_of(chunks: list[bytes]) -> str:
    documents = [json.loads(line[6:]) for line in b"".join(chunks).splitlines() if line.startswith(b"data: {")]
    return "".join(choice["text"] for document in documents for choice in document["choices"])


async def call_app(app: Any, fields: dict[str, Any], unblocked: asyncio.Event | None = None) -> list[bytes]:
    """The body pieces of a reply, without a network. With ``unblocked``, the connection takes the second piece only then."""
    pieces: list[bytes] = []
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # the client stays
        sent = True
        return {"type": "http.request", "body": json.dumps(fields).encode()}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            if pieces and unblocked is not None:
                await unblocked.wait()
            pieces.append(message["body"])

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": headers,
        "query_string": b"",
        "root_path": "",
    }
    await app(scope, receive, send)
    return pieces


def test_a_failing_engine_step_ends_its_request_with_an_error_event() -> None:
    with running_server(fake_engine(failing_token=7)) as server:
        for stream in (False, True):
            reply = server.request("POST", "/v1/completions", {"prompt": [7], "max_tokens": 5, "stream": stream})
            assert reply.status == (200 if stream else 500)
            error = reply.events[-1]["error"] if stream else reply.json["error"]
            assert error["type"] == "server_error" and "[DONE]" not in reply.body.decode()
        assert server.request("POST", "/v1/completions", {"prompt": [8], "max_tokens": 5}).status == 200
