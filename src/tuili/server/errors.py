"""Errors as HTTP replies: the only place that chooses status codes.

Every error on every route has OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``. A reply never carries a
traceback; what is not a TuiliError is a bug of ours: it is logged in full and answered with a plain 500.
"""

import math
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.responses import Response

from tuili.dialects.openai.wire import ErrorBody, ErrorDetail, encode
from tuili.errors import (
    BackendError,
    ContextTooLong,
    InvalidRequest,
    ModelNotFound,
    NotSupported,
    Overloaded,
    TemplateRefused,
    TuiliError,
    Unavailable,
)


class HttpProblem(TuiliError):
    """Something that only HTTP knows: keys, hosts, routes, methods, media types, sizes."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    type: str
    code: str | None = None


_INVALID = "invalid_request_error"

_PROBLEMS: dict[str, _Reply] = {
    "unauthorized": _Reply(401, "authentication_error", "invalid_api_key"),
    "forbidden_host": _Reply(403, "permission_error", "forbidden_host"),
    "no_route": _Reply(404, _INVALID, "unknown_url"),
    "method": _Reply(405, _INVALID, "method_not_allowed"),
    "timeout": _Reply(408, _INVALID, "request_timeout"),
    "too_large": _Reply(413, _INVALID, "request_too_large"),
    "media_type": _Reply(415, _INVALID, "unsupported_media_type"),
}

#: Most specific first.
_KINDS: tuple[tuple[type[TuiliError], _Reply], ...] = (
    (ContextTooLong, _Reply(400, _INVALID, "context_length_exceeded")),
    (TemplateRefused, _Reply(400, _INVALID, "template_refused")),
    (InvalidRequest, _Reply(400, _INVALID, "invalid_value")),
    (ModelNotFound, _Reply(404, _INVALID, "model_not_found")),
    (NotSupported, _Reply(400, _INVALID, "not_supported")),
    (Overloaded, _Reply(429, "rate_limit_error", "queue_full")),
    (Unavailable, _Reply(503, "service_unavailable_error", "unavailable")),
    (BackendError, _Reply(500, "server_error", "backend_error")),
)
_BUG = _Reply(500, "server_error", "internal_error")


def error_detail(error: Exception, request_id: str | None = None) -> tuple[int, ErrorBody]:
    """Status and body for any exception."""
    reply = _classify(error)
    message = str(error)
    if not isinstance(error, TuiliError):
        # The words of an unexpected exception may hold paths or prompts.
        named = f" (request {request_id})" if request_id else ""
        message = f"the server failed at this request{named}; its log has the details"
    param = error.field if isinstance(error, InvalidRequest) else None
    if isinstance(error, ModelNotFound):
        param = "model"
    return reply.status, ErrorBody(ErrorDetail(message, reply.type, param, reply.code))


def _classify(error: Exception) -> _Reply:
    if isinstance(error, HttpProblem):
        return _PROBLEMS[error.kind]
    for kind, reply in _KINDS:
        if isinstance(error, kind):
            return reply
    return _BUG


def error_response(error: Exception, request_id: str | None = None) -> Response:
    status, body = error_detail(error, request_id)
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded | Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(encode(body), status, headers, "application/json")


def from_http_exception(error: HTTPException, method: str, path: str, nearest: str | None) -> Exception:
    """The framework's own refusals (no route, wrong method), said in our words."""
    if error.status_code == 404:
        hint = f"; did you mean {nearest}?" if nearest else "; GET /openapi.json lists all routes"
        return HttpProblem("no_route", f"there is no {method} {path}{hint}")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return HttpProblem("method", f"{path} does not take {method}; use {allowed}")
    return error
