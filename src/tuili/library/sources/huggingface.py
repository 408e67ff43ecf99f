"""Files of Hugging Face repositories, over HTTP with ranges.

Addresses and headers as documented at huggingface.co/docs/hub (``/{repo}/resolve/{revision}/{file}`` redirects to the store of
large files; ``X-Linked-Etag`` then carries the file's sha256 and ``X-Linked-Size`` its size).
"""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from urllib.parse import quote

import httpx2

from tuili.errors import DownloadError
from tuili.library.catalogue import HuggingFaceSource, ModelFile
from tuili.library.sources.base import Report

CONNECT_TIMEOUT = 3.0
READ_TIMEOUT = 30.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class HuggingFaceFetcher:
    """``endpoint`` is the site or a mirror of it; ``token`` opens gated repositories and is sent to the endpoint alone."""

    def __init__(self, endpoint: str, token: str | None = None, *, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.timeout = httpx2.Timeout(READ_TIMEOUT, connect=connect_timeout)
        self.headers = {"User-Agent": "tuili", "Accept-Encoding": "identity"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def url(self, source: HuggingFaceSource) -> str:
        return f"{self.endpoint}/{quote(source.repo)}/resolve/{quote(source.revision, safe='')}/{quote(source.file)}"

    def stream(self, source: HuggingFaceSource, file: ModelFile, offset: int, report: Report) -> Iterator[bytes]:
        """See ``Fetcher``. A server that ignores the range is read from the start, and the bytes already here are skipped."""
        url = self.url(source)
        headers = {**self.headers, "Range": f"bytes={offset}-"} if offset else self.headers
        report.status(f"fetching {source.file} from {self.endpoint}, repository {source.repo}")
        with (
            _errors_named(url),
            httpx2.Client(timeout=self.timeout, follow_redirects=True, headers=headers) as client,
            client.stream("GET", url) as response,
        ):
            skip = offset - _start_of(response, url, file, offset)
            for chunk in response.iter_raw():  # as it arrives: a lost connection then costs nothing that was received
                yield chunk[skip:]
                skip = max(0, skip - len(chunk))


def _start_of(response: httpx2.Response, url: str, file: ModelFile, offset: int) -> int:
    """The position of the answer's first byte; raises DownloadError when the answer is not the pinned file."""
    status = response.status_code
    if status in (401, 403):
        raise DownloadError(
            f"{url} answered {status}: the repository is gated or private; set HF_TOKEN to a token that may read it"
        )
    if status not in (200, 206):
        raise DownloadError(f"{url} answered {status} {response.reason_phrase}".rstrip())
    for answer in (*response.history, response):
        etag = answer.headers.get("x-linked-etag", "").strip('"')
        if _SHA256.fullmatch(etag) and etag != file.sha256:
            raise DownloadError(f"{url} now holds another file: its sha256 is {etag}, the pinned one is {file.sha256}")
    start = 0
    total = response.headers.get("content-length") if status == 200 else None
    if status == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is None or int(match[1]) > offset:
            raise DownloadError(f"{url} answered a range that was not asked for: {response.headers.get('content-range')!r}")
        start, total = int(match[1]), match[2]
    if total is not None and total.isdigit() and int(total) != file.size:
        raise DownloadError(f"{url} holds {total} bytes; the pinned file has {file.size}")
    return start


@contextmanager
def _errors_named(url: str) -> Generator[None]:
    try:
        yield
    except httpx2.ConnectTimeout as error:
        raise DownloadError(f"{_site(url)} did not answer within {CONNECT_TIMEOUT:g} seconds") from error
    except httpx2.ConnectError as error:
        raise DownloadError(f"{_site(url)} cannot be reached ({error})") from error
    except httpx2.TimeoutException as error:
        raise DownloadError(f"{url} fell silent for {READ_TIMEOUT:g} seconds") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise DownloadError(f"{url} cannot be read: {error or type(error).__name__}") from error


def _site(url: str) -> str:
    return "/".join(url.split("/")[:3])
