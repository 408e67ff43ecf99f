"""The route table, and the application made of it."""

import difflib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tuili import __version__
from tuili.dialects.openai.schema import ChatCompletionBody, CompletionBody
from tuili.errors import TuiliError
from tuili.server.errors import error_response, from_http_exception
from tuili.server.middleware import wrap
from tuili.server.routes import openai, ops
from tuili.server.service import Service


@dataclass(frozen=True, slots=True)
class Route:
    methods: tuple[str, ...]
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    body: type[BaseModel] | None = None


ROUTES = (
    Route(("POST",), "/v1/chat/completions", openai.create_chat_completion, ChatCompletionBody),
    Route(("POST",), "/v1/completions", openai.create_completion, CompletionBody),
    Route(("GET",), "/v1/models", openai.list_models),
    Route(("GET",), "/v1/models/{model:path}", openai.retrieve_model),
    Route(("GET", "HEAD"), "/health", ops.health),
    Route(("GET", "HEAD"), "/ready", ops.ready),
    Route(("GET",), "/metrics", ops.metrics),
    Route(("GET",), "/version", ops.version),
)

#: Where OpenAPI keeps schemas that others refer to.
_SCHEMA_REF = "#/components/schemas/{model}"


def create_app(service: Service) -> ASGIApp:
    """The whole server as an ASGI application. No CORS headers: browsers' pages of other origins are not let in."""
    app = FastAPI(title="Tuili", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    for route in ROUTES:
        for method in route.methods:
            app.add_api_route(
                route.path,
                route.handler,
                methods=[method],
                response_class=Response,
                include_in_schema=method != "HEAD",
                openapi_extra=_request_body(route.body),
            )
    app.add_exception_handler(TuiliError, _on_error)
    app.add_exception_handler(Exception, _on_error)  # a bug of ours: answered here, logged by the outermost middleware
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.openapi = lambda: _openapi(app)
    return wrap(app, service)


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.state.request_id)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    near = difflib.get_close_matches(path, [route.path for route in ROUTES], n=1, cutoff=0.7)
    return error_response(from_http_exception(error, request.method, path, near[0] if near else None), request.state.request_id)


def _request_body(body: type[BaseModel] | None) -> dict[str, Any] | None:
    if body is None:
        return None
    schema = {"$ref": _SCHEMA_REF.format(model=body.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The framework's description with our bodies: routes read them themselves, so that errors have OpenAI's shape."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for body in {route.body for route in ROUTES if route.body}:
        schema = body.model_json_schema(ref_template=_SCHEMA_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[body.__name__] = schema
    return document
