"""``tuili show``: what is known of one model."""

from dataclasses import asdict
from pathlib import Path

import click

from tuili.cli.console import show_facts, show_json, size_text
from tuili.cli.models import known_names, open_store
from tuili.cli.options import json_option, model_argument
from tuili.errors import InvalidRequest, ModelFileError
from tuili.library.catalogue import CatalogueEntry, load_catalogue, not_found
from tuili.library.licence import describe
from tuili.library.names import parse_reference
from tuili.library.store import Manifest, Store


@click.command("show")
@model_argument("name")
@click.option("--verify", is_flag=True, help="Read every byte, and compare with the sha256.")
@json_option
def command(name: str, verify: bool, as_json: bool) -> None:
    """Say what is known of a model: its files, where they came from, its licence."""
    asked = parse_reference(name)
    if isinstance(asked, Path):
        raise InvalidRequest(f"`tuili show` tells of models by name; `tuili inspect {name}` looks into a file")
    store, catalogue = open_store(), load_catalogue()
    entry = catalogue.find(asked)
    manifest = store.find(asked, entry.tag if entry else None)
    if manifest is None and entry is None:
        raise not_found(asked, known_names())
    problems = store.problems(manifest, read_all=verify) if manifest else []
    if as_json:
        facts = asdict(manifest) if manifest else {"name": entry.name, "tag": entry.tag} if entry else {}
        show_json({**facts, "here": manifest is not None, "problems": problems})
    else:
        show_facts(_facts(entry, manifest, store))
        if verify and manifest and not problems:
            click.echo("Every byte is as it should be.")
    if manifest and problems:
        full = manifest.full_name
        raise ModelFileError(f"{full} is damaged: {'; '.join(problems)}. Run `tuili pull {full}` to repair it.")


def _facts(entry: CatalogueEntry | None, manifest: Manifest | None, store: Store) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if entry:
        kind = "answers in turns" if entry.chat else "base model: completes text, knows no turns"
        facts += [("model", entry.title), ("name", entry.full_name), ("parameters", entry.parameters), ("kind", kind)]
        facts += [("context", f"{entry.context} tokens"), ("licence", describe(entry.licence)), ("terms", entry.licence.url)]
    elif manifest:
        facts += [("model", manifest.title), ("name", manifest.full_name), ("context", f"{manifest.context} tokens")]
        facts += [("licence", manifest.licence_id), ("terms", manifest.licence_url)]
    if manifest is None:
        assert entry
        return [*facts, ("size", size_text(entry.size)), ("here", f"no; `tuili pull {entry.full_name}` fetches it")]
    if manifest.accepted_at:
        facts.append(("accepted", manifest.accepted_at))
    facts.append(("fetched", manifest.pulled_at))
    for file in manifest.files:
        facts += [("file", f"{file.name}, {size_text(file.size)}"), ("source", file.source), ("sha256", file.sha256)]
        facts.append(("path", str(store.blob(file.sha256))))
    return facts
