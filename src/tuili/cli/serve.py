"""``tuili serve``: one model behind an OpenAI-compatible API."""

from typing import TYPE_CHECKING, Any

import click

from tuili.cli.console import note
from tuili.cli.models import fetch_if_absent, find
from tuili.cli.options import accept_licence_option, concurrency_options, engine_options, model_argument, read_engine_options
from tuili.config.options import EngineOptions, ServerOptions
from tuili.config.sources import Settings, read_settings
from tuili.library.resolve import NotHereYet, ResolvedModel

if TYPE_CHECKING:
    from tuili.engine.build import LoadedEngine

DEFAULTS = ServerOptions()


@click.command("serve")
@model_argument()
@click.option("--host", metavar="HOST", help=f"Address to listen on. Default: {DEFAULTS.host}. Others need --api-key.")
@click.option("--port", "-p", type=int, metavar="PORT", help=f"Default: {DEFAULTS.port}; 0 takes a free one.")
@click.option("--api-key", multiple=True, metavar="KEY", help="A key that opens /v1; may be given several times.")
@click.option("--served-model-name", metavar="NAME", help="What clients call the model. Default: its name, or the file's stem.")
@click.option(
    "--share-prefix/--no-share-prefix",
    default=None,
    help="One prefix cache for all API keys: faster, but timing may tell what others sent. Default: off.",
)
@click.option(
    "--drain-timeout", type=int, metavar="SECONDS", help="How long running answers may take after SIGTERM. Default: 30."
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Default: info.")
@click.option("--log-format", metavar="FORMAT", help="text or json. Default: text.")
@accept_licence_option
@engine_options
@concurrency_options
@click.pass_context
def command(ctx: click.Context, model: str, accept_licence: bool, **flags: Any) -> int:
    """Serve MODEL, which is a name of `tuili list --all` or a path to a .gguf file.

    Every option can also be an environment variable (TUILI_PORT, TUILI_API_KEY, …) or a line of config.toml in the home folder.

    \b
    tuili serve smollm2
    curl localhost:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
    """
    settings = read_settings()
    server_options = _server_options(settings, flags)
    options = read_engine_options(settings, flags)
    level = settings.choice("log_level", ("debug", "info", "warning", "error"), flags["log_level"]) or "info"
    log_format: Any = settings.choice("log_format", ("text", "json"), flags["log_format"]) or "text"
    found = find(model, accept_licence=accept_licence)
    name = found.served_name if isinstance(found, ResolvedModel) else found.entry.full_name

    from tuili.observe.log import configure_logging
    from tuili.server.lifecycle import serve

    configure_logging(level=level, format=log_format)
    loaded: list[LoadedEngine] = []

    def load() -> "LoadedEngine":
        loaded.append(_load(found, options))
        return loaded[0]

    code = serve(load, server_options, model_name=name)
    if options.profile and loaded:
        note(str(loaded[0].profile()))
    return code


def _load(found: ResolvedModel | NotHereYet, options: EngineOptions) -> "LoadedEngine":
    """In a thread, once the port is ours: a taken port is said before a long fetch, not after it."""
    from tuili.engine.build import build_engine
    from tuili.server.report import LoadingLines

    return build_engine(fetch_if_absent(found, quiet=False).path, options, progress=LoadingLines())


def _server_options(settings: Settings, flags: dict[str, Any]) -> ServerOptions:
    port = settings.integer("port", flags["port"], low=0, high=65535)
    drain_timeout = settings.integer("drain_timeout", flags["drain_timeout"], low=0)
    return ServerOptions(
        host=settings.text("host", flags["host"]) or DEFAULTS.host,
        port=DEFAULTS.port if port is None else port,
        api_keys=settings.texts("api_key", flags["api_key"]),
        served_model_name=settings.text("served_model_name", flags["served_model_name"]),
        share_prefix=bool(settings.boolean("share_prefix", flags["share_prefix"])),
        drain_timeout=DEFAULTS.drain_timeout if drain_timeout is None else float(drain_timeout),
    )
