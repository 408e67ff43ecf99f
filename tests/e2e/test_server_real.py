"""The server on real models, as a user starts it."""

import random
import threading
from collections.abc import Iterator

import openai
import pytest

from support.models import path
from support.server import ServerProcess, server_process, wait_until

pytestmark = [pytest.mark.real, pytest.mark.slow]

QWEN = "qwen2.5-coder:0.5b"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("tuili", "serve", str(path(QWEN)), "--port", "0", "--max-model-len", "2048") as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0, timeout=300)


def test_an_answer(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=20, temperature=0)  # type: ignore[arg-type]
    assert "Paris" in (whole.choices[0].message.content or "")
    stream = client.chat.completions.create(model=model, messages=messages, max_tokens=20, temperature=0, stream=True)  # type: ignore[arg-type]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content


def test_thirty_two_streams(client: openai.OpenAI) -> None:
    """Every one of them finishes."""
    model = client.models.list().data[0].id
    reasons: list[str | None] = []

    def call(number: int) -> None:
        prompt = f"def add_{number}(a, b):\n"
        stream = client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0, stream=True)
        reasons.append([chunk.choices[0].finish_reason for chunk in stream][-1])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(reasons) == 32 and set(reasons) <= {"stop", "length"}


def test_two_hundred_aborts(server: ServerProcess, client: openai.OpenAI) -> None:
    """[D-STRM-2] at random phases: afterwards nothing runs, nothing waits, and no block of the KV cache is in use."""
    model = client.models.list().data[0].id
    impatient = client.with_options(timeout=0.05)
    random.seed(11)
    for _ in range(200):
        prompt = "x = 1\n" * random.choice((2, 20, 200))
        try:
            stream = impatient.with_options(timeout=random.choice((0.02, 0.1, 0.3))).completions.create(
                model=model, prompt=prompt, max_tokens=500, stream=True
            )
            for _ in zip(range(random.randint(0, 4)), stream, strict=False):
                pass
            stream.close()
        except openai.APITimeoutError:
            pass
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    wait_until(lambda: all(f'tuili_{gauge}{{model_name="{model}"}} 0.0' in metrics(server) for gauge in gauges), "idle", 60)


def metrics(server: ServerProcess) -> str:
    return server.fetch("/metrics").body.decode()
