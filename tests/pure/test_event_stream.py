"""The end of a streamed answer, however it is reached."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from support.fake_model import fake_engine
from tuili.server.generation import Generation
from tuili.server.stream import EventStream
from tuili.types import GenerateRequest, SamplingParams


async def _receive() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}


async def _send(message: MutableMapping[str, Any]) -> None:
    raise OSError(f"no connection for {message['type']}")


def test_a_reply_that_cannot_even_begin_ends_its_generation() -> None:
    """Otherwise the engine computes an answer that nobody reads."""
    loaded = fake_engine()

    async def run() -> None:
        running: set[Generation] = set()
        request = GenerateRequest("a", (1, 2), SamplingParams(max_tokens=400, ignore_eos=True))
        generation = Generation.start(loaded.client, [request], running)
        with pytest.raises(OSError, match="no connection"):
            await EventStream(generation, None, {})({"type": "http", "state": {}}, _receive, _send)  # type: ignore[arg-type]
        assert generation.aborted and not running
        assert await loaded.client.drain(timeout=10)

    asyncio.run(run())
    loaded.client.shutdown()
    assert loaded.engine.scheduler.kv.usage == 0
