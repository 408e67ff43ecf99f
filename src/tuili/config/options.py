"""Every setting, as frozen data. ``None`` means auto: ``config/resolve.py`` turns it into a value, once, and says so."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from tuili.errors import ConfigError

BackendName = Literal["auto", "cpu", "reference", "fake"]
IsaName = Literal["generic", "avx2", "avx512"]


#: Bytes of all packed weights that are kept for later starts.
DEFAULT_PACK_CACHE_SIZE = 32 * 2**30


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Names as in vLLM's ``speculative_config``. ``num_speculative_tokens``: most guesses a step for one sequence.

    ``prompt_lookup_min``, ``prompt_lookup_max``: how many last tokens have to occur before; the longest match wins.
    ``max_batch_rows``: guesses are left out where a step decodes more rows than this, since every further row then costs as much
    as it could save.

    Raises ConfigError, naming the field.
    """

    method: Literal["ngram"]
    num_speculative_tokens: int = 7
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    max_batch_rows: int = 8

    def __post_init__(self) -> None:
        if self.method != "ngram":
            raise ConfigError(f"speculative_config: method is {self.method!r}; it has to be ngram")
        for name, low, high in (
            ("num_speculative_tokens", 1, 32),
            ("prompt_lookup_min", 1, 16),
            ("prompt_lookup_max", self.prompt_lookup_min, 16),
            ("max_batch_rows", 2, 64),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(f"speculative_config: {name} is {value!r}; it has to be from {low} to {high}")

    @staticmethod
    def read(given: Mapping[str, Any]) -> "SpeculativeConfig":
        """From the settings of a JSON object."""
        known = [field.name for field in fields(SpeculativeConfig)]
        unknown = sorted(given.keys() - set(known))
        if unknown or "method" not in given:
            said = f"has no {', '.join(unknown)}" if unknown else "needs a method"
            raise ConfigError(f"speculative_config {said}; known are {', '.join(known)}")
        return SpeculativeConfig(**given)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to load and run one model. Names are vLLM's where it has the setting.

    ``kv_cache_memory_bytes``: budget of the KV cache, never exceeded. ``threads``: native worker threads. ``isa``: highest
    instruction set to use. ``cpu_list``: CPUs to bind the threads to, one each. ``max_waiting_requests``: above it, requests
    are refused with 429. ``profile``: keep the time of each op. ``enable_prefix_caching``: tokens that an earlier request began
    with are not computed again. ``speculative_config``: guess tokens ahead; faster where text repeats, and the same text always.
    ``pack_cache``: keep the packed weights for later starts (packs that are there are used in any case);
    ``pack_cache_size``: bytes of all of them together.
    """

    backend: BackendName = "auto"
    isa: IsaName | None = None
    threads: int | None = None
    cpu_list: tuple[int, ...] | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_waiting_requests: int | None = None
    profile: bool = False
    enable_prefix_caching: bool = True
    speculative_config: SpeculativeConfig | None = None
    pack_cache: bool = False
    pack_cache_size: int | None = None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to listen. ``api_keys``: any of them opens /v1; a non-loopback host needs at least one. ``share_prefix``: the prefix
    cache is one for all keys, so that a fast answer may tell that somebody else sent the same words. Times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    served_model_name: str | None = None
    share_prefix: bool = False
    drain_timeout: float = 30.0
    max_body_bytes: int = 16 * 1024 * 1024
