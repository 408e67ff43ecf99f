"""``tuili rm``: remove models from the disk."""

from pathlib import Path

import click

from tuili.backends.cpu.pack_cache import PackCache
from tuili.cli.console import size_text
from tuili.cli.models import open_store
from tuili.cli.options import model_argument, quiet_option
from tuili.config.sources import pack_dir
from tuili.errors import ModelNotFound
from tuili.library.catalogue import load_catalogue, not_found
from tuili.library.names import ModelName, parse_name
from tuili.library.store import Store
from tuili.weights.content import content_of


@click.command("rm")
@model_argument("names", several=True, paths=False)
@quiet_option
def command(names: tuple[str, ...], quiet: bool) -> None:
    """Remove models, and what was packed of them. A file that two models share stays until the second one goes."""
    store = open_store()
    for name in [parse_name(name) for name in names]:
        full_name, freed = _remove(name, store)
        if not quiet:
            click.echo(f"{full_name} is removed; {size_text(freed)} are free again")


def _remove(name: ModelName, store: Store) -> tuple[str, int]:
    entry = load_catalogue().find(name)
    manifest = store.find(name, entry.tag if entry else None)
    if manifest is not None:
        packs = _remove_packs(store.blob(manifest.files[0].sha256))
        return manifest.full_name, packs + store.remove(manifest)
    freed = sum(store.discard_partial(file.sha256) for file in entry.files) if entry else 0
    if entry and freed:
        return f"what was fetched of {entry.full_name}", freed
    here = [manifest.full_name for manifest in store.models()]
    if entry or not here:
        raise ModelNotFound(f"{name} is not here: {'here are ' + ', '.join(here) if here else 'no model is'}")
    raise not_found(name, here)


def _remove_packs(path: Path) -> int:
    """Delete what `tuili compile` made of a model file. Returns the bytes freed."""
    try:
        content = content_of([path])
    except FileNotFoundError:
        return 0
    return PackCache(pack_dir(), write=False, max_bytes=0).remove(content)
