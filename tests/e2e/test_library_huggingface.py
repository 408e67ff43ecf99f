"""The Hugging Face source against a real HTTP server on the loopback interface, well-behaved and not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub import Hub, serving
from support.library import HUB, Recorder, ScriptedFetcher, content, model_file
from tuili.errors import DownloadError
from tuili.library.catalogue import HuggingFaceSource
from tuili.library.pull import Fetchers, fetch_file
from tuili.library.sources.huggingface import HuggingFaceFetcher
from tuili.library.store import partial_path

DATA = content(3_000_000)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(DATA) as state:
        yield state


def fetch(hub: Hub, folder: Path, report: Recorder | None = None, token: str | None = None) -> bytes:
    fetchers = Fetchers(HuggingFaceFetcher(hub.address, token), ScriptedFetcher(b""), lambda _: 10**12)
    fetch_file(model_file(DATA), folder / "blob", fetchers, report or Recorder())
    return (folder / "blob").read_bytes()


def test_a_file_arrives_through_the_redirect_and_the_token_stays_home(hub: Hub, tmp_path: Path) -> None:
    assert fetch(hub, tmp_path, token="hf_secret") == DATA
    assert hub.requests == [
        ("/owner/repo/resolve/main/model.gguf", None, "Bearer hf_secret"),
        ("/store/blob", None, None),
    ]


def test_a_dropped_connection_is_continued_with_a_range(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = [1_200_000, 700_000]
    report = Recorder()
    assert fetch(hub, tmp_path, report) == DATA
    ranges = [asked for path, asked, _ in hub.requests if path == "/store/blob"]
    assert ranges[0] is None and len(ranges) == 3
    assert report.said("continuing at byte")
    begins = [int(asked.removeprefix("bytes=").rstrip("-")) for asked in ranges[1:] if asked]
    assert 0 < begins[0] < begins[1] < len(DATA)


def test_a_partial_file_from_before_is_continued(hub: Hub, tmp_path: Path) -> None:
    partial_path(tmp_path / "blob").write_bytes(DATA[:2_000_001])
    assert fetch(hub, tmp_path) == DATA
    assert hub.requests[-1][1] == "bytes=2000001-"


def test_a_server_without_ranges_still_works(hub: Hub, tmp_path: Path) -> None:
    hub.ranges = False
    partial_path(tmp_path / "blob").write_bytes(DATA[:2_000_001])
    assert fetch(hub, tmp_path) == DATA


def test_another_file_at_the_address_is_noticed_before_it_is_read(hub: Hub, tmp_path: Path) -> None:
    hub.linked_etag = "0" * 64
    with pytest.raises(DownloadError, match="now holds another file: its sha256 is 000"):
        fetch(hub, tmp_path)
    assert not partial_path(tmp_path / "blob").stat().st_size


def test_a_wrong_size_is_noticed_before_it_is_read(hub: Hub, tmp_path: Path) -> None:
    hub.data = DATA + b"x"
    with pytest.raises(DownloadError, match="holds 3000001 bytes; the pinned file has 3000000"):
        fetch(hub, tmp_path)


def test_forged_bytes_of_the_right_size_are_thrown_away(hub: Hub, tmp_path: Path) -> None:
    hub.data = b"!" + DATA[1:]
    with pytest.raises(DownloadError, match="wrong sha256"):
        fetch(hub, tmp_path)
    assert not (tmp_path / "blob").exists()


def test_a_range_that_was_not_asked_for_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.wrong_range = True
    partial_path(tmp_path / "blob").write_bytes(DATA[:10])
    with pytest.raises(DownloadError, match="a range that was not asked for"):
        fetch(hub, tmp_path)


@pytest.mark.parametrize(
    ("status", "said"), [(404, "answered 404"), (401, "set HF_TOKEN"), (403, "gated"), (503, "answered 503")]
)
def test_refusals_are_explained(hub: Hub, tmp_path: Path, status: int, said: str) -> None:
    hub.status = status
    with pytest.raises(DownloadError, match=said):
        fetch(hub, tmp_path)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://nosuchhost.invalid", "http://[bad"])
def test_an_endpoint_that_is_not_there_is_named(endpoint: str) -> None:
    with pytest.raises(DownloadError, match=r"http://"):
        list(HuggingFaceFetcher(endpoint).stream(HUB, model_file(DATA), 0, Recorder()))


def test_addresses_are_quoted() -> None:
    url = HuggingFaceFetcher("https://hub.example/").url(HuggingFaceSource("o/r", "dir/a b?.gguf", "refs/pr/1"))
    assert url == "https://hub.example/o/r/resolve/refs%2Fpr%2F1/dir/a%20b%3F.gguf"
