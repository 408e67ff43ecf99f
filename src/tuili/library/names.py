"""What a user may call a model: ``name:tag`` of the library, or a path to a file.

Names become folder names, so they are checked by a strict grammar and never cleaned up: a bad name is refused.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tuili.errors import InvalidRequest, NotSupported

MAX_LENGTH = 80
_PART = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_RULE = f"letters, digits, '.', '_' and '-', beginning and ending with a letter or digit, at most {MAX_LENGTH} characters"

#: Device names of Windows, reserved there in every folder and with every suffix.
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}


@dataclass(frozen=True, slots=True, order=True)
class ModelName:
    """A name of the library. ``tag`` None means the catalogue's default for that name."""

    name: str
    tag: str | None = None

    def __str__(self) -> str:
        return self.name if self.tag is None else f"{self.name}:{self.tag}"


def parse_name(text: str) -> ModelName:
    """``name`` or ``name:tag``, case-insensitive. Raises InvalidRequest for everything else: no paths, no escapes."""
    name, colon, tag = text.strip().lower().partition(":")
    for part, kind in ((name, "name"), (tag, "tag")):
        if kind == "tag" and not colon:
            continue
        if len(part) > MAX_LENGTH or not _PART.fullmatch(part) or ".." in part or part.split(".")[0] in _RESERVED:
            raise InvalidRequest(
                f"{_shorten(text)} is not a model name: a {kind} has to be {_RULE}, as in smollm2:135m", field="model"
            )
    return ModelName(name, tag if colon else None)


def parse_reference(text: str) -> ModelName | Path:
    """What a user typed on the command line: a path when it looks like one, else a library name.

    A path contains a separator, begins with ``~`` or ends with ``.gguf``; a file ``model`` right here is ``./model``.
    """
    if text.lower().startswith(("hf:", "http://", "https://")):
        raise NotSupported(
            f"{_shorten(text)}: fetching from an address or straight from a Hugging Face repository is not supported yet; "
            "download the .gguf file and give its path, or take a model of `tuili list --all`"
        )
    if "\0" not in text and ("/" in text or "\\" in text or text.startswith("~") or text.lower().endswith(".gguf")):
        return Path(text).expanduser()
    return parse_name(text)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
