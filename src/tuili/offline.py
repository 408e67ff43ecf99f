"""``tuili.LLM``: the offline engine, finding models as the command line does."""

from pathlib import Path
from typing import Any

from tuili.config.sources import home_dir
from tuili.engine import llm
from tuili.errors import ModelNotFound
from tuili.library.catalogue import load_catalogue
from tuili.library.resolve import NotHereYet, resolve
from tuili.library.store import Store


class LLM(llm.LLM):
    """A model in this process. ``model``: a name of the library (``smollm2``, ``qwen2.5-coder:0.5b``) or the path of a file;
    ``options``: fields of EngineOptions. Nothing is downloaded: ``tuili pull NAME`` does that.

    Raises ModelNotFound when the model is not on this machine, ConfigError for an unknown option or a bad value.
    """

    def __init__(self, model: str | Path, **options: Any) -> None:
        found = resolve(str(model), Store(home_dir()), load_catalogue())
        if isinstance(found, NotHereYet):
            raise ModelNotFound(
                f"{found.entry.full_name} is not on this machine yet; fetch it with: tuili pull {found.entry.full_name}"
            )
        super().__init__(found.path, **options)
