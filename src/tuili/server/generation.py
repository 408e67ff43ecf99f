"""The engine's side of one call: one request for each prompt, their events as one stream, and their end.

However it is left (finished, failed, client gone, server stopping), every request that was submitted has ended afterwards.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from tuili.engine.client import EngineClient, RequestStream
from tuili.errors import BackendError
from tuili.text.grammar.compiler import Grammar
from tuili.types import GenerateRequest, RequestOutput, Usage

#: The place of a prompt in the call, with what the engine says about it.
Event = tuple[int, RequestOutput]


class Generation:
    """``async for prompt_index, output in generation``; raises BackendError when the engine failed at one of the requests.

    ``counts``: tokens so far, for each prompt. ``aborted``: ended by us, because the client has gone or the server stops.
    """

    def __init__(
        self,
        client: EngineClient,
        request_ids: Sequence[str],
        streams: Sequence[RequestStream],
        running: "set[Generation]",
    ) -> None:
        self._client = client
        self._running = running
        running.add(self)
        self._request_ids = request_ids
        self._streams = streams
        self._finished = False
        self.aborted = False
        self.client_gone = False
        self.counts = [Usage(0, 0) for _ in streams]

    @classmethod
    def start(
        cls,
        client: EngineClient,
        requests: Sequence[GenerateRequest],
        running: "set[Generation]",
        grammar: Grammar | None = None,
    ) -> "Generation":
        """Submits all or none, and is in ``running`` until it is closed. Raises what ``EngineClient.submit`` does."""
        streams: list[RequestStream] = []
        try:
            for request in requests:
                streams.append(client.submit(request, grammar))
        except Exception:
            for request in requests[: len(streams)]:
                client.abort(request.request_id)
            raise
        return cls(client, [request.request_id for request in requests], streams, running)

    def abort(self) -> None:
        """Ends what still runs; the stream then finishes by itself. To be called any number of times, at any moment."""
        if self._finished:
            return
        self.aborted = True
        for request_id in self._request_ids:
            self._client.abort(request_id)

    def close(self) -> None:
        """To be called when the reply is done with it."""
        self.abort()
        self._running.discard(self)

    async def __aiter__(self) -> AsyncIterator[Event]:
        if len(self._streams) == 1:
            # The usual case, without a layer in between: this runs for every token of every stream.
            async for output in self._streams[0]:
                yield self._seen(0, output)
        else:
            async for prompt_index, output in self._merged():
                yield self._seen(prompt_index, output)
        self._finished = not self.aborted

    def _seen(self, prompt_index: int, output: RequestOutput) -> Event:
        self.counts[prompt_index] = output.usage
        if output.error is not None:
            raise BackendError(f"generation failed: {output.error}")
        return prompt_index, output

    async def _merged(self) -> AsyncIterator[Event]:
        """Events of several streams as they come; each stream is pumped by a task."""
        events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()

        async def pump(index: int, stream: RequestStream) -> None:
            try:
                async for output in stream:
                    events.put_nowait((index, output))
                events.put_nowait(None)
            except Exception as error:
                events.put_nowait(error)

        pumps = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(self._streams)]
        try:
            running = len(pumps)
            while running:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                if event is None:
                    running -= 1
                else:
                    yield event
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
