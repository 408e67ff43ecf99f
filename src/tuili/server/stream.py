"""Server-sent events: neutral events in, bytes out, one encoding a chunk.

A stream ends in one of three ways: with ``data: [DONE]`` after its last chunk; with one error event and no ``[DONE]`` when the
engine failed or the server stopped; or with nothing, when the client has gone. Format: WHATWG HTML, "Server-sent events".
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tuili.dialects.openai.reply import Reply
from tuili.dialects.openai.wire import encode
from tuili.errors import TuiliError, Unavailable
from tuili.server.errors import error_detail
from tuili.server.generation import Generation

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


def sse(chunks: Sequence[Struct]) -> bytes:
    if len(chunks) == 1:
        return b"data: %b\n\n" % encode(chunks[0])
    return b"".join([b"data: %b\n\n" % encode(chunk) for chunk in chunks])


class EventStream(Response):
    """Sends a generation's events as they come, and aborts it when the client goes."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, reply: Reply, headers: Mapping[str, str]) -> None:
        super().__init__(None, 200, {**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # A stream has no length; the empty body's would be wrong.
        del self.headers["content-length"]
        self._generation = generation
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A task of its own, and the server's own ``send``: otherwise every token would pass all frames of the middleware twice.
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        except BaseException:
            self._generation.close()
            raise
        writer = asyncio.create_task(self._write(scope["state"].get("server_send", send)))
        watcher = asyncio.create_task(abort_on_disconnect(receive, self._generation))
        try:
            last = await writer
            await send({"type": "http.response.body", "body": last})
        finally:
            watcher.cancel()
            writer.cancel()
            self._generation.close()

    async def _write(self, send: Send) -> bytes:
        """Everything but the last piece, which is returned: the end of the answer, or the error that ended it."""
        reply = self._reply
        try:
            if opening := reply.opening():
                await send({"type": "http.response.body", "body": sse(opening), "more_body": True})
            async for prompt_index, output in self._generation:
                reply.push(prompt_index, output)
                if news := reply.news():
                    await send({"type": "http.response.body", "body": sse(news), "more_body": True})
            if self._generation.aborted:
                raise Unavailable("the server is shutting down; this answer is not complete")
            return sse(reply.closing()) + DONE
        except Exception as error:
            if not isinstance(error, TuiliError):
                log.exception("a stream failed")
            return sse([error_detail(error)[1]])


async def abort_on_disconnect(receive: Receive, generation: Generation) -> None:
    """Waits until the client has gone, then aborts. To be cancelled when the reply is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.client_gone = True
    generation.abort()


async def run_to_end(generation: Generation, reply: Reply, receive: Receive) -> bool:
    """Feeds all events to ``reply``; False when the client went away meanwhile, so that nobody waits for the reply.

    Raises BackendError, and Unavailable when the server stopped before the answer was complete.
    """
    watcher = asyncio.create_task(abort_on_disconnect(receive, generation))
    try:
        async for prompt_index, output in generation:
            reply.push(prompt_index, output)
    finally:
        watcher.cancel()
        generation.close()
    if generation.client_gone:
        return False
    if generation.aborted:
        raise Unavailable("the server is shutting down; this answer could not be completed")
    return True
