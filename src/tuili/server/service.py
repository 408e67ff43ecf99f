"""The one model that a server offers, and where it is in its life."""

import time
from enum import Enum

from tuili.config.options import ServerOptions
from tuili.engine.build import LoadedEngine
from tuili.errors import ModelNotFound, Unavailable
from tuili.server.generation import Generation


class Phase(Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """Shared by all routes. Lives on the event loop: nothing here is called from other threads.

    ``active``: calls to /v1 that are being answered. ``running``: their generations, so that a drain can end them.
    """

    def __init__(self, model_name: str, options: ServerOptions) -> None:
        self.model_name = model_name
        self.options = options
        self.created = int(time.time())
        self.phase = Phase.LOADING
        self.loaded: LoadedEngine | None = None
        self.active = 0
        self.running: set[Generation] = set()

    def become_ready(self, loaded: LoadedEngine) -> None:
        self.loaded = loaded
        self.created = int(time.time())
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    @property
    def state(self) -> str:
        """What /ready says: loading, ready, draining or failed."""
        if self.phase is Phase.READY and self.loaded is not None and not self.loaded.client.ready:
            return Phase.FAILED.value
        return self.phase.value

    def engine(self) -> LoadedEngine:
        """The engine, if a request would run now; raises Unavailable otherwise."""
        state = self.state
        if state == "ready" and self.loaded is not None:
            return self.loaded
        if state == "loading":
            raise Unavailable(f"{self.model_name} is still loading; try again, or wait until GET /ready says 200", retry_after=2)
        if state == "draining":
            raise Unavailable("the server is shutting down and takes no new requests; ask another one", retry_after=30)
        raise Unavailable("the engine has failed; the server has to be restarted, and its log says why", retry_after=30)

    def check_model(self, name: str | None) -> None:
        """A request may leave the model out, since there is one, or its tag, as on the command line; raises ModelNotFound for
        any other."""
        if name not in (None, self.model_name, self.model_name.partition(":")[0]):
            raise ModelNotFound(f"the model {name[:200]!r} is not served here; this server has {self.model_name!r}")
