"""Every setting, as frozen data. ``None`` means auto: ``config/resolve.py`` turns it into a value, once, and says so."""

from dataclasses import dataclass
from typing import Literal

BackendName = Literal["auto", "cpu", "reference", "fake"]
IsaName = Literal["generic", "avx2", "avx512"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to load and run one model. Names are vLLM's where it has the setting.

    ``kv_cache_memory_bytes``: budget of the KV cache, never exceeded. ``threads``: native worker threads. ``isa``: highest
    instruction set to use. ``max_waiting_requests``: above it, requests are refused with 429. ``profile``: keep the time of
    each op. ``enable_prefix_caching``: tokens that an earlier request began with are not computed again.
    """

    backend: BackendName = "auto"
    isa: IsaName | None = None
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_waiting_requests: int | None = None
    profile: bool = False
    enable_prefix_caching: bool = True


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
