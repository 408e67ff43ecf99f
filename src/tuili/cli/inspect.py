"""``tuili inspect``: the program that a model file becomes."""

import click

from tuili.cli.console import size_text
from tuili.cli.models import fetch_if_absent, find
from tuili.cli.options import accept_licence_option, model_argument, quiet_option


@click.command("inspect")
@model_argument()
@accept_licence_option
@quiet_option
def command(model: str, accept_licence: bool, quiet: bool) -> None:
    """Print the program of MODEL: its instructions, shapes, formats and sizes, equal layers once.

    Weights are not read, so this is quick for any size of file.
    """
    found = fetch_if_absent(find(model, accept_licence=accept_licence), quiet=quiet)

    from tuili.models.load import read_model
    from tuili.program.dump import dump
    from tuili.weights.gguf import open_gguf

    description = read_model(open_gguf(found.path))
    click.echo(f"{found.served_name}: {found.path}, {size_text(found.path.stat().st_size)}")
    click.echo(dump(description.program, description.formats, description.sizes()))
