"""A hub of models on the loopback interface, as strange as a test wants it."""

import hashlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """A hub that redirects to its store of large files as the real one does, with switches for misbehaviour."""

    data: bytes
    linked_etag: str = ""
    address: str = ""
    status: int = 200
    ranges: bool = True
    wrong_range: bool = False
    cut_after: list[int] = field(default_factory=list)
    #: The first answer stops here for as long as the client waits, and no later one does.
    pause_after: int | None = None
    requests: list[tuple[str, str | None, str | None]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.hub
        hub.requests.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        if self.path.startswith("/owner/"):
            self.send_response(302 if hub.status == 200 else hub.status)
            self.send_header("X-Linked-Etag", f'"{hub.linked_etag}"')
            self.send_header("X-Linked-Size", str(len(hub.data)))
            self.send_header("Location", f"{hub.address.replace('127.0.0.1', 'localhost')}/store/blob")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and hub.ranges else 0
        if hub.wrong_range:
            start += 5
        body = hub.data[start:]
        self.send_response(206 if asked and hub.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        if asked and hub.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(hub.data) - 1}/{len(hub.data)}")
        self.end_headers()
        if hub.pause_after is not None:
            self.wfile.write(body[: hub.pause_after])
            hub.pause_after = None
            self.connection.recv(1)
            return
        self.wfile.write(body[: hub.cut_after.pop(0)] if hub.cut_after else body)
        self.close_connection = True


class Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up early is part of these tests."""


@contextmanager
def serving(data: bytes) -> Generator[Hub]:
    """A hub whose every repository holds one file, ``data``."""
    hub = Hub(data, hashlib.sha256(data).hexdigest())
    server = Server(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
