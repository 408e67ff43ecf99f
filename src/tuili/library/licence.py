"""The terms a model comes under: said in plain words, and asked for where they have to be accepted."""

from tuili.errors import LicenceRequired
from tuili.library.catalogue import CatalogueEntry, Licence


def describe(licence: Licence) -> str:
    """One line for people."""
    return f"{licence.title} ({licence.id}): {licence.summary}"


def require_acceptance(entry: CatalogueEntry, accepted: bool) -> None:
    """Raises LicenceRequired when the model's terms must be accepted and were not."""
    if entry.licence.must_accept and not accepted:
        raise LicenceRequired(
            f"{entry.full_name} comes under the {entry.licence.title}: {entry.licence.summary} "
            f"Read them at {entry.licence.url}; to accept them, run the same command with --accept-licence. Nothing was fetched."
        )
