"""``tuili list``: the models that are here, or could be."""

from dataclasses import asdict

import click

from tuili.cli.console import note, show_json, show_table, size_text
from tuili.cli.models import open_store
from tuili.cli.options import json_option
from tuili.library.catalogue import load_catalogue


@click.command("list")
@click.option("--all", "-a", "show_all", is_flag=True, help="Also those of the catalogue that are not here yet.")
@json_option
def command(show_all: bool, as_json: bool) -> None:
    """List the models that are here."""
    here = open_store().models()
    names = {manifest.full_name for manifest in here}
    absent = [entry for entry in load_catalogue().entries if entry.full_name not in names] if show_all else []
    if as_json:
        rows = [{**asdict(manifest), "here": True} for manifest in here]
        rows += [
            {"name": e.name, "tag": e.tag, "title": e.title, "size": e.size, "licence_id": e.licence.id, "here": False}
            for e in absent
        ]
        show_json(rows)
        return
    if not here and not absent:
        note("No models are here yet. `tuili list --all` shows what can be fetched, `tuili pull smollm2` fetches the smallest.")
        return
    table = [[m.full_name, size_text(m.size), m.licence_id, m.pulled_at[:10], m.title] for m in here]
    table += [[e.full_name, size_text(e.size), e.licence.id, "not here", e.title] for e in absent]
    show_table(["NAME", "SIZE", "LICENCE", "FETCHED", "MODEL"], table)
