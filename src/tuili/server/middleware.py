"""What happens to every request around its route, as plain ASGI: request ids and the access log, the host check, keys, size.

(The framework's own middleware base class would hide disconnects from streaming routes.) ``wrap`` puts them in order.
"""

import hashlib
import hmac
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuili.server.errors import HttpProblem, error_response
from tuili.server.generation import Generation
from tuili.server.service import Service

log = logging.getLogger("tuili.access")

#: Under these, a key is needed when keys are set. Health, readiness and metrics stay open for probes and scrapers.
PROTECTED_PREFIX = "/v1/"
#: Probes and scrapes are logged at debug level only.
_QUIET = ("/health", "/ready", "/metrics")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")


def wrap(app: ASGIApp, service: Service) -> ASGIApp:
    """The application inside its middleware; the outermost comes last."""
    options = service.options
    app = BodyLimit(app, options.max_body_bytes)
    app = CountActive(app, service)
    if options.api_keys:
        app = ApiKeys(app, options.api_keys)
    elif is_loopback(options.host):
        app = LoopbackHost(app, options.host)
    return RequestLog(app)


def is_loopback(host: str) -> bool:
    """Whether a host name or address (without a port) says this machine itself."""
    if host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class RequestLog:
    """Gives each request an id (its own ``X-Request-Id`` if it is sane), answers what nobody caught, and logs one line.

    The line has no query string, header, prompt or answer. A route that generates leaves its ``generation`` in the state.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["server_send"] = send
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log.exception("unexpected failure", extra={"fields": {"id": request_id}})
            if status == 0:
                await error_response(error, request_id)(scope, receive, send_with_id)
        finally:
            _log_access(scope, status, time.monotonic() - started)


def _log_access(scope: Scope, status: int, seconds: float) -> None:
    level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
    fields: dict[str, object] = {"seconds": f"{seconds:.3f}"}
    generation: Generation | None = scope["state"].get("generation")
    if generation is not None:
        fields["prompt_tokens"] = sum(count.prompt_tokens for count in generation.counts)
        fields["completion_tokens"] = sum(count.completion_tokens for count in generation.counts)
        if generation.aborted:
            fields["aborted"] = "client gone" if generation.client_gone else "server stopping"
    fields["id"] = scope["state"]["request_id"]
    log.log(level, "%s %s %d", scope["method"], scope["path"][:200], status, extra={"fields": fields})


class LoopbackHost:
    """Without keys, only requests addressed to this machine by name are answered: a web page that points its own domain at
    127.0.0.1 (DNS rebinding) is refused.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Headers(scope=scope).get("host", "")
            name = _without_port(given)
            if name and name.lower() != self._host and not is_loopback(name):
                problem = HttpProblem(
                    "forbidden_host",
                    f"this server has no key and answers only to localhost, not to {given[:100]!r}; set --api-key to open it",
                )
                await error_response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") <= 1 else host


class ApiKeys:
    """``Authorization: Bearer KEY`` opens the protected routes. All keys are compared, each in constant time. Who holds the key
    is the request's ``tenant``, by the key's digest."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(PROTECTED_PREFIX):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if self._opens(given):
                scope.setdefault("state", {})["tenant"] = hashlib.sha256(given.partition(b" ")[2].strip()).hexdigest()
            else:
                said = "the API key is wrong" if given else "an API key is needed"
                problem = HttpProblem("unauthorized", f"{said}; send Authorization: Bearer KEY with a key of this server")
                await error_response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _opens(self, header: bytes) -> bool:
        scheme, _, key = header.partition(b" ")
        key = key.strip()
        matches = 0
        for known in self._keys:
            matches += hmac.compare_digest(key, known)
        return matches > 0 and scheme.lower() == b"bearer"


class CountActive:
    """Counts the calls being answered, so that a drain knows when the last one is done."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PROTECTED_PREFIX):
            await self._app(scope, receive, send)
            return
        self._service.active += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.active -= 1


class BodyLimit:
    """Refuses a body that says it is too large before reading any of it, and one that turns out to be while reading."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "")
        if said.isdecimal() and int(said) > self._limit:
            await error_response(self._too_large(f"{said} bytes"))(scope, receive, send)
            return
        await self._app(scope, self._counting(receive), send)

    def _counting(self, receive: Receive) -> Receive:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise self._too_large(f"over {self._limit} bytes")
            return message

        return counted

    def _too_large(self, size: str) -> HttpProblem:
        return HttpProblem("too_large", f"the body has {size}; at most {self._limit} bytes are possible")
