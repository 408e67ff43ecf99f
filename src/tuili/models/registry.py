"""Architecture name -> the file that knows it, found by listing this folder."""

import difflib
import importlib
import pkgutil
from functools import cache
from typing import Any, Protocol, cast

import tuili.models
from tuili.errors import NotSupported
from tuili.models.names import Names
from tuili.models.spec import Config, ModelSpec
from tuili.program.builder import Builder
from tuili.program.program import Value

SHARED = frozenset({"spec", "rope", "registry", "blocks", "load", "names", "gguf_config"})


class Architecture(Protocol):
    """What an architecture file holds. ``NAMES``: what GGUF files and Hugging Face's ``model_type`` call it."""

    NAMES: tuple[str, ...]

    def spec(self, cfg: Config, max_model_len: int | None = None) -> ModelSpec: ...

    def weights(self, s: ModelSpec) -> Names:
        """Canonical name -> where GGUF files keep it."""
        ...

    def build(self, b: Builder, s: ModelSpec) -> Value:
        """Emit the program; returns the output rows."""
        ...

    def tiny(self) -> dict[str, Any]:
        """A small configuration for tests, in Hugging Face's keys."""
        ...


@cache
def architectures() -> dict[str, Architecture]:
    """File name -> module, for every architecture file of the folder."""
    stems = sorted(module.name for module in pkgutil.iter_modules(tuili.models.__path__) if module.name not in SHARED)
    return {stem: cast("Architecture", importlib.import_module(f"tuili.models.{stem}")) for stem in stems}


def architecture(name: str) -> Architecture:
    """The file for an architecture name; raises NotSupported naming what there is, nearest first."""
    known = {alias: module for module in architectures().values() for alias in module.NAMES}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (nearest: {near[0]})" if near else ""
    raise NotSupported(f"model architecture not supported yet: {name}; supported: {', '.join(sorted(known))}{hint}")
