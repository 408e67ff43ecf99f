"""Options that several commands share, and how they become EngineOptions."""

import json
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click
from click.shell_completion import CompletionItem

from tuili.config.options import BackendName, EngineOptions, IsaName, SpeculativeConfig
from tuili.config.sources import Settings
from tuili.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


def model_argument(name: str = "model", *, several: bool = False, paths: bool = True) -> Callable[[Function], Function]:
    """The MODEL of a command; a shell completes names of the library, and paths where the command takes them."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from tuili.cli.models import known_names

        names = [CompletionItem(known) for known in known_names() if known.startswith(incomplete)]
        return names or ([CompletionItem(incomplete, type="file")] if paths else [])

    metavar = "MODEL..." if several else "MODEL"
    return click.argument(name, nargs=-1 if several else 1, required=True, metavar=metavar, shell_complete=complete)


accept_licence_option = click.option(
    "--accept-licence", "--accept-license", "accept_licence", is_flag=True, help="Accept the model's terms, where it has some."
)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors.")
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


def _all_of(*options: Callable[[Any], Any]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


isa_option = click.option("--isa", metavar="NAME", help="Highest instruction set to use: generic, avx2 or avx512.")
threads_option = click.option(
    "--threads", "-t", type=int, metavar="N", help="Worker threads. Default: the processors that are ours."
)
pack_cache_size_option = click.option(
    "--pack-cache-size", metavar="SIZE", help="Of all packed weights together: those used longest ago go. Default: 32GiB."
)

#: Flags of ``read_engine_options``. Each but --profile also has a ``TUILI_…`` variable and a line in config.toml.
engine_options = _all_of(
    click.option("--backend", metavar="NAME", help="auto, cpu (native) or reference (slow, exact). Default: auto."),
    isa_option,
    threads_option,
    click.option("--cpu-list", metavar="LIST", help="CPUs to bind the threads to, such as 0,2-3. Default: none in particular."),
    click.option("--max-model-len", type=int, metavar="N", help="Context in tokens, prompt and answer together."),
    click.option("--max-num-batched-tokens", type=int, metavar="N", help="Tokens computed in one step. Default: 512."),
    click.option("--kv-cache-memory-bytes", metavar="SIZE", help="Memory for the KV cache, such as 512MiB; never exceeded."),
    click.option(
        "--speculative-config",
        metavar="JSON",
        help='Guess tokens ahead, such as {"method": "ngram"}: the same text, sooner where it repeats. Default: off.',
    ),
    click.option("--pack-cache", is_flag=True, help="Keep the packed weights: later starts are faster, as after tuili compile."),
    pack_cache_size_option,
    click.option("--profile", is_flag=True, help="At the end, say where the time of the steps went, by op."),
)

#: Those that only a server needs.
concurrency_options = _all_of(
    click.option("--max-num-seqs", type=int, metavar="N", help="Sequences that run at once."),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=None,
        help="Do not compute again what an earlier request began with. Default: on.",
    ),
    click.option("--max-waiting-requests", type=int, metavar="N", help="Above it, requests are refused with 429."),
)


def read_engine_options(settings: Settings, flags: dict[str, Any], *, one_at_a_time: bool = False) -> EngineOptions:
    """From flags, environment, file. ``one_at_a_time``: the engine will see one sequence only, so its cache need hold no more.

    Raises ConfigError, naming where a bad value came from.
    """
    backend: Any = settings.choice("backend", get_args(BackendName), flags["backend"])
    isa: Any = settings.choice("isa", get_args(IsaName), flags["isa"])
    return EngineOptions(
        backend=backend or "auto",
        isa=isa,
        threads=settings.integer("threads", flags["threads"], high=1024),
        cpu_list=settings.cpus("cpu_list", flags["cpu_list"]),
        max_model_len=settings.integer("max_model_len", flags["max_model_len"]),
        max_num_seqs=1 if one_at_a_time else settings.integer("max_num_seqs", flags["max_num_seqs"]),
        max_num_batched_tokens=settings.integer("max_num_batched_tokens", flags["max_num_batched_tokens"]),
        kv_cache_memory_bytes=settings.size("kv_cache_memory_bytes", flags["kv_cache_memory_bytes"]),
        max_waiting_requests=None
        if one_at_a_time
        else settings.integer("max_waiting_requests", flags["max_waiting_requests"], low=0),
        profile=flags["profile"],
        speculative_config=_speculative_config(settings.text("speculative_config", flags["speculative_config"])),
        enable_prefix_caching=settings.boolean("enable_prefix_caching", flags.get("enable_prefix_caching")) is not False,
        pack_cache=settings.boolean("pack_cache", flags["pack_cache"] or None) is True,
        pack_cache_size=settings.size("pack_cache_size", flags["pack_cache_size"]),
    )


def _speculative_config(text: str | None) -> SpeculativeConfig | None:
    if text is None:
        return None
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'speculative_config is not JSON ({error}); it looks like {{"method": "ngram"}}') from None
    if not isinstance(given, dict):
        raise ConfigError('speculative_config has to be a JSON object, such as {"method": "ngram"}')
    return SpeculativeConfig.read(given)
