"""Options that several commands share, and how they become EngineOptions."""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from tuili.config.options import BackendName, EngineOptions, IsaName
from tuili.config.sources import Settings

Function = TypeVar("Function", bound=Callable[..., Any])

accept_licence_option = click.option(
    "--accept-licence", "--accept-license", "accept_licence", is_flag=True, help="Accept the model's terms, where it has some."
)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors.")
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


def engine_options(function: Function) -> Function:
    """Adds the flags of ``read_engine_options``; each also has a ``TUILI_…`` variable and a line in config.toml."""
    for option in reversed(
        (
            click.option("--backend", metavar="NAME", help="auto, cpu (native) or reference (slow, exact). Default: auto."),
            click.option("--isa", metavar="NAME", help="Highest instruction set to use: generic, avx2 or avx512."),
            click.option("--threads", "-t", type=int, metavar="N", help="Worker threads. Default: the processor's cores."),
            click.option("--max-model-len", type=int, metavar="N", help="Context in tokens, prompt and answer together."),
            click.option("--max-num-seqs", type=int, metavar="N", help="Sequences that run at once."),
            click.option("--max-num-batched-tokens", type=int, metavar="N", help="Tokens computed in one step."),
            click.option(
                "--kv-cache-memory-bytes", metavar="SIZE", help="Memory for the KV cache, such as 512MiB; never exceeded."
            ),
            click.option("--max-waiting-requests", type=int, metavar="N", help="Above it, requests are refused with 429."),
        )
    ):
        function = option(function)
    return function


def read_engine_options(settings: Settings, flags: dict[str, Any]) -> EngineOptions:
    """From flags, environment, file. Raises ConfigError, naming where a bad value came from."""
    backend: Any = settings.choice("backend", get_args(BackendName), flags["backend"])
    isa: Any = settings.choice("isa", get_args(IsaName), flags["isa"])
    return EngineOptions(
        backend=backend or "auto",
        isa=isa,
        threads=settings.integer("threads", flags["threads"], high=1024),
        max_model_len=settings.integer("max_model_len", flags["max_model_len"]),
        max_num_seqs=settings.integer("max_num_seqs", flags["max_num_seqs"]),
        max_num_batched_tokens=settings.integer("max_num_batched_tokens", flags["max_num_batched_tokens"]),
        kv_cache_memory_bytes=settings.size("kv_cache_memory_bytes", flags["kv_cache_memory_bytes"]),
        max_waiting_requests=settings.integer("max_waiting_requests", flags["max_waiting_requests"]),
    )
