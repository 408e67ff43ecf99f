"""From an open port to the last answer: bind first, load second, drain on a signal.

serve ── open_sockets ── event loop ─┬─ uvicorn answers from the first moment (503 until loaded)
                                     ├─ a thread loads the model ── READY, or the load's error ends the server
                                     └─ SIGTERM or SIGINT ── DRAINING ── all answered, or drain_timeout ── exit
                                                       └─ a second one ends everything at once
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator

import uvicorn

from tuili.config.options import ServerOptions
from tuili.engine.build import LoadedEngine, trim_heap
from tuili.server import report
from tuili.server.app import create_app
from tuili.server.bind import BACKLOG, open_sockets, shown_url
from tuili.server.service import Phase, Service

log = logging.getLogger(__name__)

#: After the drain, clients that do not read get this long before their connections are cut. In seconds.
LAST_WRITES = 2


def serve(load: Callable[[], LoadedEngine], options: ServerOptions, *, model_name: str) -> int:
    """Serves one model until a signal says to stop, and returns the exit code 0.

    ``load`` runs in a thread after the port is bound. ``model_name`` is what clients ask for, unless
    ``options.served_model_name`` is set. Raises ConfigError for an address that cannot be used, and what ``load`` raises.
    Logging is configured by the caller (``observe.log.configure_logging``).
    """
    sockets = open_sockets(options)
    service = Service(options.served_model_name or model_name, options)
    report.log_start(service, shown_url(options.host, sockets))
    lifecycle = Lifecycle(load, service, sockets)
    with asyncio.Runner(loop_factory=lifecycle.loop_factory) as runner:
        runner.run(lifecycle.run())
    if lifecycle.failure is not None:
        raise lifecycle.failure
    log.info("stopped")
    return 0


def uvicorn_config(service: Service) -> uvicorn.Config:
    """How uvicorn serves us: our own access log (uvicorn's would show query strings), no banner, no lifespan protocol."""
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its lines about starting and stopping repeat ours
    return uvicorn.Config(
        create_app(service),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=LAST_WRITES,
    )


class Lifecycle:
    def __init__(self, load: Callable[[], LoadedEngine], service: Service, sockets: list[socket.socket]) -> None:
        self._load = load
        self._service = service
        self._sockets = sockets
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        config = uvicorn_config(service)
        self._server = _Uvicorn(config)
        self.loop_factory = config.get_loop_factory()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        # A daemon thread: a signal during a long load ends the process without waiting for it.
        threading.Thread(target=self._load_in_thread, args=(loop,), name="load", daemon=True).start()
        await self._server.serve(self._sockets)
        if self._service.loaded is not None:
            self._service.loaded.close()

    def _load_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        started = time.monotonic()
        try:
            loaded = self._load()
            trim_heap()  # what loading used for a moment would stay ours
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # the loop is closed: a signal was faster
                loop.call_soon_threadsafe(self._on_load_failed, error)
        else:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_loaded, loaded, time.monotonic() - started)

    def _on_loaded(self, loaded: LoadedEngine, seconds: float) -> None:
        self._service.become_ready(loaded)
        report.log_loaded(self._service, loaded, seconds, shown_url(self._service.options.host, self._sockets))
        # What loading made lives for ever: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()

    def _on_load_failed(self, error: BaseException) -> None:
        self.failure = error
        self._service.phase = Phase.FAILED
        self._server.should_exit = True

    def _on_signal(self, number: signal.Signals) -> None:
        service = self._service
        if service.phase is Phase.DRAINING or self._server.should_exit:
            log.warning("second signal: ending at once", extra={"fields": {"cut_answers": service.active}})
            self._server.end_now()
        elif service.phase is Phase.READY:
            service.phase = Phase.DRAINING
            fields = {"running": service.active, "drain_timeout": service.options.drain_timeout}
            log.info("%s: finishing what runs, taking nothing new", number.name, extra={"fields": fields})
            task = asyncio.get_running_loop().create_task(self._drain())
            self._tasks.add(task)
        else:
            log.info("%s while %s: stopping", number.name, service.phase.value)
            self._server.should_exit = True

    async def _drain(self) -> None:
        deadline = time.monotonic() + self._service.options.drain_timeout
        while self._service.active and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if self._service.active:
            log.warning("the drain time is over", extra={"fields": {"cut_answers": self._service.active}})
            for generation in list(self._service.running):
                generation.abort()
        self._server.should_exit = True


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handling: a signal drains first, while the port still answers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    def end_now(self) -> None:
        self.force_exit = True
        self.should_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
