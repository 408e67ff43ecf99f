"""``tuili pull``: fetch models of the catalogue."""

from dataclasses import asdict

import click

from tuili.cli.console import note, show_json, size_text
from tuili.cli.models import fetch
from tuili.cli.options import accept_licence_option, json_option, model_argument, quiet_option
from tuili.library.catalogue import load_catalogue
from tuili.library.names import parse_name


@click.command("pull")
@model_argument("names", several=True, paths=False)
@accept_licence_option
@quiet_option
@json_option
def command(names: tuple[str, ...], accept_licence: bool, quiet: bool, as_json: bool) -> None:
    """Fetch models by name, as in `tuili list --all`.

    An interrupted fetch continues where it stopped. What is here already is checked against its sha256.
    """
    entries = [load_catalogue().get(parse_name(name)) for name in names]
    manifests = [fetch(entry, accept_licence=accept_licence, quiet=quiet) for entry in entries]
    if as_json:
        show_json([asdict(manifest) for manifest in manifests])
    elif not quiet:
        for manifest in manifests:
            for file in manifest.files:
                note(f"{manifest.full_name}: {file.name}, {size_text(file.size)}, from {file.source}")
            click.echo(f"{manifest.full_name} is ready: tuili run {manifest.full_name}")
