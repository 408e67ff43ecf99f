"""Tuili runs open-weights language models. The public surface is what ``__all__`` lists."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuili.errors import TuiliError
    from tuili.offline import LLM
    from tuili.types import SamplingParams, StructuredOutputs

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "StructuredOutputs", "TuiliError", "__version__"]

_HOMES = {
    "LLM": "tuili.offline",
    "SamplingParams": "tuili.types",
    "StructuredOutputs": "tuili.types",
    "TuiliError": "tuili.errors",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``tuili --help`` must not pay for the engine."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tuili' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
