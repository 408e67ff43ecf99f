"""The engine as everybody else sees it: submit a request, read its stream, abort it. Owns the engine's thread.

Threads. ``submit``, streams and outputs belong to one event loop. The engine's thread takes messages (add, abort) between steps
and hands the outputs of a step over with one ``call_soon_threadsafe``. Messages are plain data. When there is nothing to do the
thread sleeps on a condition.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tuili.engine.admission import RequestChecker
from tuili.engine.engine import Engine
from tuili.engine.output import OutputProcessor, merge
from tuili.engine.request import Request, StepOutputs
from tuili.engine.speculate import DraftStats
from tuili.errors import InvalidRequest, Overloaded, Unavailable
from tuili.observe.metrics import EngineMetrics
from tuili.text.grammar.compiler import Grammar
from tuili.types import FinishReason, GenerateRequest, RequestOutput

log = logging.getLogger(__name__)

#: Steps the engine may be ahead of the event loop. A slow loop slows the engine down instead of filling memory.
MAX_STEPS_AHEAD = 4


class _Abort(NamedTuple):
    request_id: str
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine now. ``running`` and ``waiting`` count sequences; ``kv_usage`` is 0 to 1; ``free_blocks`` a state group."""

    running: int
    waiting: int
    kv_usage: float
    num_preemptions: int
    free_blocks: tuple[int, ...]
    drafts: DraftStats

    def as_metrics(self) -> Mapping[str, float]:
        """For ``observe.metrics.expose``."""
        return {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": self.kv_usage,
            "num_preemptions_total": self.num_preemptions,
            "spec_decode_num_drafts_total": self.drafts.num_drafts,
            "spec_decode_num_draft_tokens_total": self.drafts.num_draft_tokens,
            "spec_decode_num_accepted_tokens_total": self.drafts.num_accepted_tokens,
        }


@dataclass(slots=True)
class _Channel:
    """Where outputs of one request wait for their reader."""

    num_sequences: int
    started: bool = False
    finished: bool = False
    outputs: list[RequestOutput] = field(default_factory=list[RequestOutput])
    reader: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        self.outputs.append(output)
        self.finished = output.finished
        if self.reader is not None and not self.reader.done():
            self.reader.set_result(None)


class RequestStream(AsyncIterator[RequestOutput]):
    """The outputs of one request. A reader that falls behind gets several steps as one output.

    Dropping the stream, or ``aclose``, aborts a request that has not finished.
    """

    def __init__(self, client: "EngineClient", request_id: str, channel: _Channel) -> None:
        self._client = client
        self._channel = channel
        self.request_id = request_id

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> RequestOutput:
        channel = self._channel
        while not channel.outputs:
            if channel.finished:
                raise StopAsyncIteration
            channel.reader = asyncio.get_running_loop().create_future()
            await channel.reader
        outputs, channel.outputs = channel.outputs, []
        return merge(outputs)

    async def aclose(self) -> None:
        if not self._channel.finished:
            self._client.abort(self.request_id)

    def __del__(self) -> None:
        if not self._channel.finished:
            self._client.abort_soon(self.request_id)


class EngineClient:
    """``max_waiting_requests``: above it, ``submit`` raises Overloaded."""

    def __init__(
        self,
        engine: Engine,
        checker: RequestChecker,
        processor: OutputProcessor,
        metrics: EngineMetrics,
        *,
        max_num_seqs: int,
        max_waiting_requests: int,
    ) -> None:
        self.metrics = metrics
        self.checker = checker
        self._engine = engine
        self._processor = processor
        self._max_num_seqs = max_num_seqs
        self._max_waiting_requests = max_waiting_requests
        self._channels: dict[str, _Channel] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Event | None = None
        self._num_submitted = 0
        self._draining = False
        self._wake = threading.Condition()
        self._inbox: list[Request | _Abort] = []  # guarded by _wake, as are the next four
        self._num_undelivered = 0
        self._stopping = False
        self._stopped = False
        self._death: str | None = None
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """A request submitted now would run."""
        return self._death is None and not self._draining and not self._stopping

    def submit(self, request: GenerateRequest, grammar: Grammar | None = None) -> RequestStream:
        """Queue a request, with its compiled grammar if any, and return its stream. Call it on the event loop that will read
        the stream.

        Raises InvalidRequest or ContextTooLong for what cannot be served, Overloaded when the queue is full, Unavailable when the
        engine is draining or dead: all of it now, before anything is queued.
        """
        self._bind_loop()
        if not self.ready:
            raise Unavailable(self._death or "the server is shutting down and takes no new requests")
        if request.request_id in self._channels:
            raise InvalidRequest(f"request id {request.request_id!r} is in use by a running request", field="request_id")
        if not request.arrival:
            request = _arrived_now(request)
        checked = self.checker.check(request, self._num_submitted, grammar)
        self._check_queue()
        self._num_submitted += 1
        channel = _Channel(request.params.n)
        self._channels[request.request_id] = channel
        self._processor.add(request)
        self._post(checked)
        return RequestStream(self, request.request_id, channel)

    def abort(self, request_id: str) -> None:
        """End a request in whatever phase it is; its stream ends with finish_reason "abort", its blocks are free after the
        current step. Unknown requests have ended already. May be called from any thread."""
        if _running_loop() is self._loop:
            self._end(request_id, "abort")
        else:
            self.abort_soon(request_id)

    def abort_soon(self, request_id: str) -> None:
        """``abort``, but never within the caller: the garbage collector calls at any point, even inside of a delivery."""
        if self._loop is None or self._loop.is_closed():
            self._end(request_id, "abort")
        else:
            self._loop.call_soon_threadsafe(self._end, request_id, "abort", None)

    def stats(self) -> EngineStats:
        scheduler = self._engine.scheduler
        queued = sum(isinstance(message, Request) for message in self._inbox)
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + queued,
            kv_usage=scheduler.kv.usage,
            num_preemptions=scheduler.num_preemptions,
            free_blocks=scheduler.kv.num_free,
            drafts=scheduler.draft_stats,
        )

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no new requests and wait, at most ``timeout`` seconds, for the live ones; returns whether all have ended."""
        self._draining = True
        if not self._channels:
            return True
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def shutdown(self) -> None:
        """Abort what is live and stop the engine's thread; waits for the step under way. Can be called twice."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        else:
            self._engine.close()
        for request_id in list(self._channels):
            self._end(request_id, "abort")

    def _check_queue(self) -> None:
        waiting = sum(not channel.started for channel in self._channels.values())
        running = sum(channel.num_sequences for channel in self._channels.values() if channel.started)
        if waiting >= self._max_waiting_requests + max(self._max_num_seqs - running, 0):
            self.metrics.requests_refused += 1
            raise Overloaded(
                f"{waiting} requests are waiting, the most this server allows (max_waiting_requests "
                f"{self._max_waiting_requests}); try again later"
            )

    def _bind_loop(self) -> None:
        """Follow the caller's event loop, unless another one is still reading."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._channels and self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("the engine's requests belong to another event loop")
        for request_id in list(self._channels):
            self._end(request_id, "abort")
        with self._wake:
            self._num_undelivered = 0  # what the closed loop has not handled never will be
            self._wake.notify()
        self._loop = loop

    def _post(self, message: Request | _Abort) -> None:
        with self._wake:
            if self._stopped:  # nobody will read it; its stream ends with the others
                return
            self._inbox.append(message)
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="tuili-engine", daemon=True)
                self._thread.start()
            self._wake.notify()

    # On the event loop.

    def _deliver(self, outputs: StepOutputs) -> None:
        with self._wake:
            self._num_undelivered = max(self._num_undelivered - 1, 0)
            self._wake.notify()
        for start in outputs.started:
            if channel := self._channels.get(start.request_id):
                channel.started = True
        results, stopped = self._processor.process(outputs)
        for request_id, index in stopped:
            self._post(_Abort(request_id, index))
        for output in results:
            self._put(output)

    def _put(self, output: RequestOutput) -> None:
        self._channels[output.request_id].put(output)
        if output.finished:
            del self._channels[output.request_id]
            if self._idle is not None and not self._channels:
                self._idle.set()

    def _end(self, request_id: str, reason: FinishReason, error: str | None = None) -> None:
        output = self._processor.end(request_id, reason, time.monotonic(), error)
        if output is not None:
            self._post(_Abort(request_id))
            self._put(output)

    def _end_all(self, error: str) -> None:
        for request_id in list(self._channels):
            self._end(request_id, "error", error)

    # On the engine's thread.

    def _run(self) -> None:
        try:
            while self._take_messages():
                outputs = self._engine.step()
                if outputs:
                    self._hand_over(outputs)
        except BaseException as error:
            log.exception("the engine has died")
            self._death = f"the engine has died: {error}; restart the server"
            assert self._loop is not None
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._end_all, self._death)
        finally:
            with self._wake:
                self._stopped = True
                self._inbox.clear()
            self._engine.abort_all()
            self._engine.close()

    def _take_messages(self) -> bool:
        """Wait for something to do, and take in what has been asked; False when it is time to stop."""
        with self._wake:
            while not self._stopping and (self._num_undelivered >= MAX_STEPS_AHEAD or not (self._inbox or self._engine.has_work)):
                self._wake.wait()
            messages, self._inbox = self._inbox, []
        for message in messages:
            if isinstance(message, Request):
                self._engine.add(message)
            else:
                self._engine.abort(message.request_id, message.sequence)
        return not self._stopping

    def _hand_over(self, outputs: StepOutputs) -> None:
        assert self._loop is not None
        with self._wake:
            self._num_undelivered += 1
        try:
            self._loop.call_soon_threadsafe(self._deliver, outputs)
        except RuntimeError:  # the loop was closed with requests still running: nobody reads them
            with self._wake:
                self._num_undelivered -= 1
            for event in outputs.events:
                self._engine.abort(event.request_id)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _arrived_now(request: GenerateRequest) -> GenerateRequest:
    return replace(request, arrival=time.monotonic())
