"""Reading a JSON body: media type, time, encoding and syntax, each refused with words that help."""

import asyncio

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request

from tuili.errors import InvalidRequest
from tuili.server.errors import HttpProblem

#: A client that sends its body more slowly than this is answered 408 and let go. In seconds.
BODY_TIMEOUT = 60.0

_BOM = b"\xef\xbb\xbf"


async def read_json(request: Request) -> object:
    """The decoded body. Duplicate keys: the last one counts. Raises InvalidRequest and HttpProblem."""
    _check_media_type(request.headers)
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            body = await request.body()
    except TimeoutError:
        raise HttpProblem(
            "timeout", f"the body did not arrive within {BODY_TIMEOUT:.0f} s; send it faster, or in parts"
        ) from None
    return decode(body)


def decode(body: bytes) -> object:
    """Strict JSON in UTF-8; raises InvalidRequest."""
    if not body.strip():
        raise InvalidRequest("the body is empty; send a JSON object")
    try:
        return msgspec.json.decode(body.removeprefix(_BOM))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "; send UTF-8" if body[:2] in (b"\xff\xfe", b"\xfe\xff") or not _is_utf8(body) else ""
        raise InvalidRequest(f"the body is not valid JSON: {error}{hint}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply to be a request") from None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_media_type(headers: Headers) -> None:
    """JSON, or nothing said. What curl says by default is taken too, but not from a browser: pages of other sites may send
    forms to any address without asking, and only the media type JSON makes the browser ask first."""
    header = headers.get("content-type")
    if header is None:
        return
    kind, _, parameters = header.partition(";")
    kind = kind.strip().lower()
    charset = parameters.lower().partition("charset=")[2].strip(' "')
    is_json = kind == "application/json" or kind.endswith("+json")
    is_curl = kind == "application/x-www-form-urlencoded" and "origin" not in headers
    if (is_json or is_curl) and charset in ("", "utf-8", "utf8"):
        return
    raise HttpProblem("media_type", f"Content-Type is {header[:100]!r}; send application/json in UTF-8")
