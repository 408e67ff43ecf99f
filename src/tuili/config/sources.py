"""The only reader of the environment and of the configuration file.

A setting comes from its flag, else from ``TUILI_<NAME>``, else from ``config.toml`` in the home folder, else it has its default.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tuili.errors import ConfigError

T = TypeVar("T")

#: Settings that may stand in config.toml, by the names of their flags with underscores.
FILE_SETTINGS = frozenset(
    {
        "api_key",
        "backend",
        "cpu_list",
        "drain_timeout",
        "enable_prefix_caching",
        "hf_endpoint",
        "host",
        "isa",
        "kv_cache_memory_bytes",
        "log_format",
        "log_level",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_waiting_requests",
        "pack_cache",
        "pack_cache_size",
        "port",
        "served_model_name",
        "share_prefix",
        "speculative_config",
        "threads",
    }
)

#: More than any machine has.
MAX_CPUS = 65536

#: As vLLM reads sizes: small letters count in thousands, capital ones in 1024s; ``kb`` and ``KiB`` are unambiguous.
_UNITS = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("kmgt", 1)},
    **{letter: 1024**power for power, letter in enumerate("KMGT", 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?[bB])?")


def home_dir() -> Path:
    """Where models, keys and settings live: ``TUILI_HOME``, else the platform's data folder."""
    chosen = os.environ.get("TUILI_HOME", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_data_path  # 15 ms that most commands with TUILI_HOME set do not need

    return user_data_path("tuili", appauthor=False)


def cache_dir() -> Path:
    """What may be deleted at any time: ``cache`` in the home folder."""
    return home_dir() / "cache"


def pack_dir() -> Path:
    """Packed weights of earlier starts."""
    return cache_dir() / "pack"


def hf_endpoint(settings: "Settings") -> str:
    """Address of Hugging Face or of a mirror: ``TUILI_HF_ENDPOINT``, else ``HF_ENDPOINT`` as its own tools read it."""
    endpoint = settings.text("hf_endpoint") or os.environ.get("HF_ENDPOINT", "") or "https://huggingface.co"
    if not re.match(r"https?://[^/\s]+", endpoint):
        raise ConfigError(f"the Hugging Face endpoint is {endpoint!r}; it has to be an address such as https://huggingface.co")
    return endpoint


def hf_token() -> str | None:
    """``HF_TOKEN``, for gated repositories."""
    return os.environ.get("HF_TOKEN") or None


def child_environment(**changes: str) -> dict[str, str]:
    """The environment for a child process, with changes."""
    return {**os.environ, **changes}


def color_allowed() -> bool:
    """False when the user set NO_COLOR (no-color.org)."""
    return not os.environ.get("NO_COLOR")


def locale_name() -> str:
    """The user's language, such as ``zh_CN.UTF-8``; empty when unset. POSIX order of precedence."""
    return next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := os.environ.get(name))), "")


def read_settings(home: Path | None = None) -> "Settings":
    """Settings of this process. Raises ConfigError for an unreadable file or an unknown name in it."""
    path = (home or home_dir()) / "config.toml"
    return Settings(dict(os.environ), _read_file(path) if path.exists() else {}, path)


def _read_file(path: Path) -> dict[str, Any]:
    import tomllib  # as with difflib: most people have no such file
    from difflib import get_close_matches

    try:
        file = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for name in file:
        if name not in FILE_SETTINGS:
            near = get_close_matches(name, FILE_SETTINGS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(FILE_SETTINGS))}"
            raise ConfigError(f"{path} sets {name!r}, which is no setting: {hint}")
    return file


def parse_size(text: str) -> int:
    """Bytes, from ``2000000``, ``512m``, ``2G``, ``1.5GiB``. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a size")
    number, unit, suffix = match.groups()
    if suffix:
        unit = unit.upper() if suffix.startswith("i") else unit.lower()
    return int(float(number) * _UNITS[unit])


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers, from ``0,2-3`` as Linux writes them. Raises ValueError."""
    cpus: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last) if dash else int(first)
        if not 0 <= low <= high < MAX_CPUS:
            raise ValueError
        cpus += range(low, high + 1)
    if len(set(cpus)) < len(cpus):
        raise ValueError
    return tuple(cpus)


@dataclass(frozen=True, slots=True)
class Settings:
    """Looks a setting up in its four places. Every ConfigError names the place that the bad value came from."""

    environment: Mapping[str, str]
    file: Mapping[str, Any]
    file_path: Path

    def text(self, name: str, flag: str | None = None) -> str | None:
        return self._get(name, flag, str, "text")

    def texts(self, name: str, flags: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A setting that may be given several times; comma-separated in the environment, a list in the file."""
        if flags:
            return flags
        value, origin = self._raw(name)
        if value is None:
            return ()
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(part, str) and part.strip() for part in parts):
            raise ConfigError(f"{origin} has to be a list of non-empty texts")
        return tuple(part.strip() for part in parts)

    def integer(self, name: str, flag: int | None = None, *, low: int = 1, high: int = 2**63 - 1) -> int | None:
        allowed = f"a whole number from {low} to {high}" if high < 2**63 - 1 else f"a whole number, at least {low}"

        def parse(value: str) -> int:
            number = int(value)
            if not low <= number <= high:
                raise ValueError
            return number

        return self._get(name, None if flag is None else str(flag), parse, allowed)

    def size(self, name: str, flag: str | None = None) -> int | None:
        return self._get(name, flag, parse_size, "a number of bytes, or a size such as 512MiB or 2G")

    def boolean(self, name: str, flag: bool | None = None) -> bool | None:
        """``true`` and ``false``; in the environment also ``1`` and ``0``."""
        value, origin = (flag, "") if flag is not None else self._raw(name)
        if value is None or isinstance(value, bool):
            return value
        known = {"true": True, "1": True, "false": False, "0": False}
        if not isinstance(value, str) or value.lower() not in known:
            raise ConfigError(f"{origin} is {value!r}; it has to be true or false")
        return known[value.lower()]

    def cpus(self, name: str, flag: str | None = None) -> tuple[int, ...] | None:
        return self._get(name, flag, parse_cpu_list, "CPU numbers and ranges, each once, such as 0,2-3")

    def choice(self, name: str, allowed: tuple[str, ...], flag: str | None = None) -> str | None:
        def parse(value: str) -> str:
            if value not in allowed:
                raise ValueError
            return value

        return self._get(name, flag, parse, f"one of {', '.join(allowed)}")

    def _raw(self, name: str) -> tuple[Any, str]:
        variable = f"TUILI_{name.upper()}"
        if value := self.environment.get(variable):
            return value, f"the environment variable {variable}"
        if name in self.file:
            return self.file[name], f"{name} in {self.file_path}"
        return None, ""

    def _get(self, name: str, flag: str | None, parse: Callable[[str], T], allowed: str) -> T | None:
        value, origin = (flag, f"--{name.replace('_', '-')}") if flag is not None else self._raw(name)
        if value is None:
            return None
        try:
            if isinstance(value, bool | list | dict):
                raise ValueError
            return parse(str(value))
        except ValueError:
            raise ConfigError(f"{origin} is {value!r}; it has to be {allowed}") from None
