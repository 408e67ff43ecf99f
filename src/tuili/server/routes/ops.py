"""Routes for operators: is it alive, would a request run, how is it doing, which version."""

from msgspec.json import encode
from starlette.requests import Request
from starlette.responses import Response

from tuili import __version__
from tuili.observe.metrics import expose
from tuili.server.service import Service

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def health(request: Request) -> Response:
    """200 as long as the process can do its work: 503 only when the engine has died and a restart is the cure."""
    service: Service = request.app.state.service
    alive = service.state != "failed"
    return _json({"status": "ok" if alive else "failed"}, 200 if alive else 503)


async def ready(request: Request) -> Response:
    """200 when a request would run now; otherwise 503, and the body says why."""
    service: Service = request.app.state.service
    status = 200 if service.state == "ready" else 503
    return _json({"status": service.state, "model": service.model_name}, status)


async def metrics(request: Request) -> Response:
    """Prometheus' text format; empty until the model is loaded."""
    service: Service = request.app.state.service
    if service.loaded is None:
        return Response(b"", 200, media_type=_PROMETHEUS)
    loaded = service.loaded
    text = expose(loaded.metrics, loaded.client.stats().as_metrics(), service.model_name)
    return Response(text, 200, media_type=_PROMETHEUS)


async def version(request: Request) -> Response:
    """The version of the server."""
    return _json({"version": __version__}, 200)


def _json(value: object, status: int) -> Response:
    return Response(encode(value), status, {"Cache-Control": "no-store"}, "application/json")
