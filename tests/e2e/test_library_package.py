"""Wheels as a source of model files, through the real pip and a local folder of wheels."""

from pathlib import Path

import pytest

from support.library import Recorder, ScriptedFetcher, content, in_wheels, model_file
from tuili.errors import DownloadError
from tuili.library.catalogue import PackagePart, PackageSource
from tuili.library.pull import Fetchers, fetch_file
from tuili.library.sources.package import PackageFetcher
from tuili.library.store import partial_path

DATA = content(20_000)


def test_wheels_are_joined_and_resumed_inside_the_right_part(tmp_path: Path) -> None:
    """The real pip against a local folder of wheels: all parts, then a resume that skips the first one."""
    links = tmp_path / "links"
    source = in_wheels(links, DATA, [8_000, 15_000])
    package = PackageFetcher(tmp_path / "work", ("--no-index", "--find-links", str(links)))
    all_fetchers = Fetchers(ScriptedFetcher(b""), package, lambda _: 10**12)
    file = model_file(DATA, source)
    target = tmp_path / "store" / "blob"
    fetch_file(file, target, all_fetchers, Recorder())
    assert target.read_bytes() == DATA
    target.unlink()
    partial_path(target).write_bytes(DATA[:9_500])
    (links / "toy_part1-1.0-py3-none-any.whl").unlink()
    report = Recorder()
    fetch_file(file, target, all_fetchers, report)
    assert target.read_bytes() == DATA
    assert report.said("toy-part2 1.0 with pip (part 2 of 3, then the rest)") and not report.said("toy-part1")
    assert list((tmp_path / "work").iterdir()) == []


def test_missing_and_damaged_wheels_are_explained(tmp_path: Path) -> None:
    links = tmp_path / "links"
    source = in_wheels(links, DATA, [])
    package = PackageFetcher(tmp_path / "work", ("--no-index", "--find-links", str(links)))
    wrong_member = PackageSource((PackagePart("toy-part1", "1.0", "toy/../../x", len(DATA)),))
    wrong_size = PackageSource((PackagePart("toy-part1", "1.0", "toy_part1/data/part01.bin", 7),))
    for bad, message in (
        (wrong_member, "holds no toy/../../x"),
        (wrong_size, "has 20000 bytes instead of 7"),
        (PackageSource((PackagePart("toy-part9", "1.0", "x", 1),)), r"pip cannot fetch toy-part9 1\.0: .*toy-part9"),
    ):
        with pytest.raises(DownloadError, match=message):
            list(package.stream(bad, model_file(DATA, source), 0, Recorder()))
