"""``tuili compile``: pack a model's weights ahead of time."""

import time
from typing import Any

import click

from tuili.cli.console import note, show_json, size_text
from tuili.cli.models import fetch_if_absent, find
from tuili.cli.options import (
    accept_licence_option,
    isa_option,
    json_option,
    model_argument,
    pack_cache_size_option,
    quiet_option,
    threads_option,
)
from tuili.cli.progress import loading_progress
from tuili.config.options import EngineOptions
from tuili.config.sources import read_settings


@click.command("compile")
@model_argument()
@isa_option
@threads_option
@pack_cache_size_option
@accept_licence_option
@quiet_option
@json_option
def command(model: str, accept_licence: bool, quiet: bool, as_json: bool, **flags: Any) -> None:
    """Pack the weights of MODEL for this processor, and keep them: run and serve then start faster.

    MODEL is a name of `tuili list --all` or a path to a .gguf file. What is kept is checked whenever it is used, and made again
    when the model file, the program or the processor has changed; `tuili rm` removes it with its model.
    """
    settings = read_settings()
    isa: Any = settings.choice("isa", ("generic", "avx2", "avx512"), flags["isa"])
    options = EngineOptions(
        isa=isa,
        threads=settings.integer("threads", flags["threads"], high=1024),
        pack_cache=True,
        pack_cache_size=settings.size("pack_cache_size", flags["pack_cache_size"]),
    )
    found = fetch_if_absent(find(model, accept_licence=accept_licence), quiet=quiet)

    from tuili.engine.build import compile_model

    started = time.monotonic()
    with loading_progress(quiet) as progress:
        pack, is_new = compile_model(found.path, options, progress)
    size, seconds = pack.stat().st_size, time.monotonic() - started
    if as_json:
        show_json({"model": found.served_name, "path": str(pack), "size": size, "new": is_new})
    elif not quiet:
        what = f"packed in {seconds:.1f} s" if is_new else "packed already, and undamaged"
        note(f"{pack}, {size_text(size)}")
        click.echo(f"{found.served_name} is {what}")
