"""EngineClient: streams, aborts at any phase, limits, faults, shutdown; one event loop and the engine's thread."""

import asyncio
import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from support.fake_model import fake_engine
from tuili.engine.build import LoadedEngine
from tuili.engine.client import MAX_STEPS_AHEAD, RequestStream
from tuili.engine.llm import LLM
from tuili.errors import ContextTooLong, InvalidRequest, Overloaded, Unavailable
from tuili.observe.metrics import FINISHED_REASONS, METRICS, expose
from tuili.types import GenerateRequest, RequestOutput, SamplingParams

TEXT = "Hello there, thin teller."
SCRIPTED = SamplingParams(temperature=0, max_tokens=None)
ENDLESS = SamplingParams(seed=1, max_tokens=None, ignore_eos=True)


@asynccontextmanager
async def running(**setup: object) -> AsyncIterator[LoadedEngine]:
    loaded = fake_engine(**setup)
    try:
        yield loaded
    finally:
        loaded.close()
        loaded.engine.scheduler.kv.check()
        assert loaded.engine.scheduler.kv.usage == 0


def submit(loaded: LoadedEngine, name: str, params: SamplingParams, prompt: str = "hi", **fields: int) -> RequestStream:
    ids = tuple(loaded.tokenizer.encode(prompt))
    return loaded.client.submit(GenerateRequest(name, ids, params, **fields))  # type: ignore[arg-type]


async def read(stream: RequestStream) -> tuple[str, list[RequestOutput]]:
    outputs = [output async for output in stream]
    return "".join(delta.text for output in outputs for delta in output.deltas), outputs


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread; the test's own time limit is the only clock."""
    while not condition():
        await asyncio.sleep(0.001)


def idle(loaded: LoadedEngine) -> bool:
    stats = loaded.client.stats()
    return stats.running == 0 and stats.waiting == 0 and stats.kv_usage == 0


def reasons(loaded: LoadedEngine) -> dict[str, int]:
    return {reason: count for reason, count in loaded.metrics.request_success.items() if count}


async def test_a_stream_gives_the_text_and_one_end() -> None:
    """D-STRM-1: exactly one finish reason; totals equal those of the whole."""
    async with running(script=TEXT) as loaded:
        text, outputs = await read(submit(loaded, "a", SCRIPTED))
        assert text == TEXT
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        ends = [d.finish_reason for o in outputs for d in o.deltas if d.finish_reason]
        assert ends == ["stop"]
        assert outputs[-1].usage.completion_tokens == sum(len(d.token_ids) for o in outputs for d in o.deltas)
        await until(lambda: idle(loaded))


async def test_many_streams_equal_offline_generation() -> None:
    prompts = [f"prompt {i} " * (i % 5 + 1) for i in range(24)]
    params = [replace(ENDLESS, seed=i, max_tokens=20 + i, n=1 + (i % 7 == 0)) for i in range(24)]
    expected = LLM(fake_engine(num_blocks=(800,))).generate(prompts, params)
    async with running(num_blocks=(20,)) as loaded:
        streams = [submit(loaded, str(i), p, prompt) for i, (prompt, p) in enumerate(zip(prompts, params, strict=True))]
        for (_, outputs), result in zip(await asyncio.gather(*map(read, streams)), expected, strict=True):
            for completion in result.outputs:
                deltas = [d for o in outputs for d in o.deltas if d.index == completion.index]
                assert "".join(d.text for d in deltas) == completion.text
                assert sum((d.token_ids for d in deltas), ()) == completion.token_ids
        assert loaded.client.stats().num_preemptions > 0
        assert loaded.metrics.generation_tokens == sum(r.usage.completion_tokens for r in expected)
        assert loaded.metrics.prompt_tokens == sum(r.usage.prompt_tokens for r in expected)


async def test_a_stop_string_ends_the_engine_s_work_too() -> None:
    async with running(script=TEXT * 20, max_model_len=4096, num_blocks=(300,)) as loaded:
        text, outputs = await read(submit(loaded, "a", replace(SCRIPTED, stop=("thin",))))
        assert text == "Hello there, "
        assert outputs[-1].deltas[-1].stop_reason == "thin"
        await until(lambda: idle(loaded))
        assert loaded.metrics.generation_tokens == outputs[-1].usage.completion_tokens < 30


async def test_a_slow_reader_gets_several_steps_at_once_and_holds_nobody_up() -> None:
    async with running(script=TEXT) as loaded:
        slow = submit(loaded, "slow", replace(SCRIPTED, logprobs=1, n=2))
        text, _ = await read(submit(loaded, "quick", SCRIPTED))
        assert text == TEXT
        await until(lambda: "slow" not in loaded.processor)  # all is delivered
        outputs = [output async for output in slow]
        assert len(outputs) == 1 and outputs[0].finished
        for delta in outputs[0].deltas:
            assert delta.text == TEXT
            assert [entry.token_id for entry in delta.logprobs] == list(delta.token_ids)


async def test_the_engine_waits_for_a_blocked_loop() -> None:
    """Outputs that nobody handles are bounded, so a stuck event loop does not fill memory."""
    async with running() as loaded:
        stream = submit(loaded, "a", ENDLESS)
        await until(lambda: loaded.client.stats().running > 0)
        before = loaded.engine.scheduler.running[0].num_output_tokens
        time.sleep(0.05)  # the loop stands still on purpose
        after = loaded.engine.scheduler.running[0].num_output_tokens
        assert after - before <= MAX_STEPS_AHEAD + 2
        await stream.aclose()


async def abort_call(loaded: LoadedEngine, stream: RequestStream) -> None:
    loaded.client.abort(stream.request_id)
    outputs = [output async for output in stream]
    assert outputs[-1].finished
    assert outputs[-1].deltas[-1].finish_reason in ("abort", "length")  # it may have ended just before


async def abort_close(loaded: LoadedEngine, stream: RequestStream) -> None:
    await stream.aclose()


async def abort_thread(loaded: LoadedEngine, stream: RequestStream) -> None:
    thread = threading.Thread(target=loaded.client.abort, args=(stream.request_id,))
    thread.start()
    thread.join()
    await read(stream)


@pytest.mark.parametrize("how", [abort_call, abort_close, abort_thread])
async def test_aborts_at_random_phases_give_every_block_back(how: Callable[[LoadedEngine, RequestStream], object]) -> None:
    """D-STRM-2: 200 aborts in a row leave the free-block count unchanged; queued, in prefill, while decoding, just finished."""
    rng = random.Random(3)
    async with running(num_blocks=(60,), max_num_seqs=3, max_num_batched_tokens=16) as loaded:
        free = loaded.client.stats().free_blocks
        for round_ in range(25):
            streams = [
                submit(
                    loaded,
                    f"{round_}.{i}",
                    replace(ENDLESS, n=1 + i % 2, max_tokens=rng.randrange(1, 30)),
                    "x" * rng.randrange(1, 90),
                )
                for i in range(8)
            ]
            for stream in streams:
                for _ in range(rng.randrange(3)):
                    await asyncio.sleep(0)
                await how(loaded, stream)  # type: ignore[misc]
            await until(lambda: idle(loaded))
            assert loaded.client.stats().free_blocks == free
        assert sum(loaded.metrics.request_success.values()) == 200
        assert loaded.metrics.request_aborts > 0


async def test_a_dropped_stream_is_aborted() -> None:
    """D-STRM-2: a reader that leaves without a word."""
    async with running() as loaded:

        async def leave() -> None:
            async for _ in submit(loaded, "a", ENDLESS):
                break

        await leave()
        gc.collect()
        await until(lambda: idle(loaded))
        task = asyncio.create_task(read(submit(loaded, "b", ENDLESS)))
        await until(lambda: loaded.client.stats().running > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        await until(lambda: idle(loaded))
        assert reasons(loaded) == {"abort": 2}


async def test_a_stream_collected_inside_of_a_delivery_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may run at any allocation, also while the outputs of a step are being sorted out."""
    async with running(script=TEXT) as loaded:
        dropped, seen = [submit(loaded, "a", ENDLESS)], list[str]()
        process = loaded.processor._advance  # pyright: ignore[reportPrivateUsage]

        def advance(request, event, *rest):  # type: ignore[no-untyped-def]
            seen.append(event.request_id)
            if event.request_id == "a" and "b" in seen:
                dropped.clear()
            return process(request, event, *rest)

        monkeypatch.setattr(loaded.processor, "_advance", advance)
        text, _ = await read(submit(loaded, "b", SCRIPTED))
        assert text == TEXT
        await until(lambda: idle(loaded))
        assert reasons(loaded) == {"abort": 1, "stop": 1}


async def test_gauges_return_to_zero_after_all_streams_are_dropped() -> None:
    """D-MET-1: 8 streams dropped at once; no further request; every accepted request ended in exactly one reason."""
    async with running(num_blocks=(24,), max_num_seqs=4) as loaded:
        streams = [submit(loaded, str(i), ENDLESS, "hello " * 10) for i in range(8)]
        await until(lambda: loaded.client.stats().num_preemptions > 0)
        for stream in streams:
            await stream.aclose()
        await until(lambda: idle(loaded))
        first = expose(loaded.metrics, loaded.client.stats().as_metrics(), "m").decode()
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert f'tuili_{gauge}{{model_name="m"}} 0.0' in first
        assert reasons(loaded) == {"abort": 8}
        assert loaded.metrics.requests_accepted == 8
        assert expose(loaded.metrics, loaded.client.stats().as_metrics(), "m").decode() == first


async def test_every_metric_of_the_table_is_exposed() -> None:
    """D-MET-1: counters count, histograms add up."""
    async with running(script=TEXT) as loaded:
        _, outputs = await read(submit(loaded, "a", SCRIPTED))
        text = expose(loaded.metrics, loaded.client.stats().as_metrics(), "m").decode()
        for metric in METRICS:
            assert f"# HELP tuili_{metric.name} {metric.help}" in text
        num_tokens = outputs[-1].usage.completion_tokens
        assert f'tuili_generation_tokens_total{{model_name="m"}} {float(num_tokens)}' in text
        assert f'tuili_inter_token_latency_seconds_count{{model_name="m"}} {float(num_tokens - 1)}' in text
        assert 'tuili_time_to_first_token_seconds_count{model_name="m"} 1.0' in text
        assert 'tuili_request_success_total{finished_reason="stop",model_name="m"} 1.0' in text
        assert set(loaded.metrics.request_success) == set(FINISHED_REASONS)


async def test_refusals_come_at_once_and_leave_nothing_behind() -> None:
    async with running(max_model_len=40) as loaded:
        with pytest.raises(ContextTooLong, match="41 tokens; the context is 40"):
            submit(loaded, "a", ENDLESS, "x" * 41)
        stream = submit(loaded, "a", ENDLESS)
        with pytest.raises(InvalidRequest, match="in use"):
            submit(loaded, "a", ENDLESS)
        await read(stream)
        text, _ = await read(submit(loaded, "a", replace(ENDLESS, max_tokens=1)))
        assert len(text) <= 5
        assert loaded.metrics.requests_accepted == 2


async def test_a_full_queue_refuses_and_everybody_gets_a_reply() -> None:
    """D-SCHED-3: queue limit 4, running limit 2, 60 requests at once."""
    async with running(max_num_seqs=2, max_waiting_requests=4, seconds_per_step=0.001) as loaded:
        accepted: list[RequestStream] = []
        refused = 0
        for i in range(60):
            try:
                accepted.append(submit(loaded, str(i), replace(ENDLESS, max_tokens=5)))
            except Overloaded as error:
                assert error.retry_after > 0
                refused += 1
        assert len(accepted) == 6 and refused == 54
        await asyncio.gather(*map(read, accepted))
        assert loaded.metrics.requests_refused == 54
        await read(submit(loaded, "later", replace(ENDLESS, max_tokens=5)))


async def test_one_request_s_fault_is_nobody_else_s() -> None:
    async with running(failing_token=7, script=TEXT) as loaded:
        good = submit(loaded, "good", SCRIPTED)
        bad = loaded.client.submit(GenerateRequest("bad", (7, 65), SCRIPTED))
        (text, _), (_, outputs) = await asyncio.gather(read(good), read(bad))
        assert text == TEXT
        assert outputs[-1].deltas[-1].finish_reason == "error"
        assert outputs[-1].error is not None and "told to fail" in outputs[-1].error
        assert loaded.client.ready
        assert reasons(loaded) == {"stop": 1, "error": 1}


async def test_a_broken_backend_ends_everything_with_an_error() -> None:
    """The engine dies loudly: every stream ends with an error, readiness turns false, gauges fall to 0."""
    async with running(failing_steps=frozenset(range(1000)), max_num_seqs=2) as loaded:
        streams = [submit(loaded, str(i), ENDLESS) for i in range(8)]
        for _, outputs in await asyncio.gather(*map(read, streams)):
            assert outputs[-1].deltas[-1].finish_reason == "error"
            assert outputs[-1].error
        await until(lambda: not loaded.client.ready)
        await until(lambda: idle(loaded))
        with pytest.raises(Unavailable, match="has died"):
            submit(loaded, "late", ENDLESS)
        assert reasons(loaded) == {"error": 8}


async def test_what_waits_in_the_inbox_when_the_engine_dies_is_gone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests and aborts posted during the fatal step: their streams end, and nothing counts as waiting for ever."""
    stepping, go_on = threading.Event(), threading.Event()

    def die() -> None:
        stepping.set()
        go_on.wait()
        raise RuntimeError("fire")

    async with running() as loaded:
        monkeypatch.setattr(loaded.engine, "step", die)
        streams = [submit(loaded, "first", ENDLESS)]
        await until(stepping.is_set)
        streams += [submit(loaded, str(i), ENDLESS) for i in range(4)]
        loaded.client.abort("3")
        go_on.set()
        ends = [outputs[-1].deltas[-1].finish_reason for _, outputs in await asyncio.gather(*map(read, streams))]
        assert ends == ["error", "error", "error", "error", "abort"]
        await until(lambda: idle(loaded))
        assert loaded.client.stats().waiting == 0


async def test_drain_lets_the_running_finish_and_refuses_the_new() -> None:
    async with running(script=TEXT) as loaded:
        stream = submit(loaded, "a", SCRIPTED)
        draining = asyncio.create_task(loaded.client.drain(timeout=60))
        await asyncio.sleep(0)
        assert not loaded.client.ready
        with pytest.raises(Unavailable, match="shutting down"):
            submit(loaded, "b", SCRIPTED)
        text, _ = await read(stream)
        assert text == TEXT
        assert await draining is True


async def test_drain_gives_up_and_shutdown_aborts() -> None:
    async with running(seconds_per_step=0.001) as loaded:
        stream = submit(loaded, "a", replace(ENDLESS, max_tokens=500))
        assert await loaded.client.drain(timeout=0.01) is False
        loaded.client.shutdown()
        _, outputs = await read(stream)
        assert outputs[-1].deltas[-1].finish_reason == "abort"
        loaded.client.shutdown()


def test_one_loop_after_another() -> None:
    """A command that runs a loop for each question."""
    loaded = fake_engine(script=TEXT)

    async def ask(name: str) -> str:
        text, _ = await read(submit(loaded, name, SCRIPTED))
        return text

    async def leave() -> None:
        stream = submit(loaded, "left", ENDLESS)
        await anext(stream)
        left.append(stream)  # alive, and nobody will ever read it

    left: list[RequestStream] = []
    assert asyncio.run(ask("a")) == TEXT
    asyncio.run(leave())
    assert asyncio.run(ask("b")) == TEXT
    loaded.close()
    assert idle(loaded)


async def test_an_idle_engine_uses_no_processor() -> None:
    async with running(script=TEXT) as loaded:
        await read(submit(loaded, "a", SCRIPTED))
        await until(lambda: idle(loaded))
        wakes = 0
        take = loaded.client._take_messages

        def counted() -> bool:
            nonlocal wakes
            wakes += 1
            return take()

        loaded.client._take_messages = counted  # type: ignore[method-assign]
        await asyncio.sleep(0.05)
        assert wakes <= 1
