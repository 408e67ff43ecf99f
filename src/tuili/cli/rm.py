"""``tuili rm``: remove models from the disk."""

import click

from tuili.cli.console import size_text
from tuili.cli.models import open_store
from tuili.cli.options import model_argument, quiet_option
from tuili.errors import ModelNotFound
from tuili.library.catalogue import load_catalogue, not_found
from tuili.library.names import ModelName, parse_name
from tuili.library.store import Store


@click.command("rm")
@model_argument("names", several=True, paths=False)
@quiet_option
def command(names: tuple[str, ...], quiet: bool) -> None:
    """Remove models. A file that two models share stays until the second one goes."""
    store = open_store()
    for name in [parse_name(name) for name in names]:
        full_name, freed = _remove(name, store)
        if not quiet:
            click.echo(f"{full_name} is removed; {size_text(freed)} are free again")


def _remove(name: ModelName, store: Store) -> tuple[str, int]:
    entry = load_catalogue().find(name)
    manifest = store.find(name, entry.tag if entry else None)
    if manifest is not None:
        return manifest.full_name, store.remove(manifest)
    freed = sum(store.discard_partial(file.sha256) for file in entry.files) if entry else 0
    if entry and freed:
        return f"what was fetched of {entry.full_name}", freed
    here = [manifest.full_name for manifest in store.models()]
    if entry or not here:
        raise ModelNotFound(f"{name} is not here: {'here are ' + ', '.join(here) if here else 'no model is'}")
    raise not_found(name, here)
