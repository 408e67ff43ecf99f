"""Models on disk: what is listed, what is removed, what is found to be damaged."""

from pathlib import Path

import pytest

from support.library import TERMS, Recorder, ScriptedFetcher, content, entry, fetchers, model_file
from tuili.errors import ModelFileError
from tuili.library.catalogue import Catalogue, CatalogueEntry
from tuili.library.names import ModelName
from tuili.library.pull import pull
from tuili.library.resolve import ResolvedModel, resolve
from tuili.library.store import Manifest, Store

DATA = content(5000)


def pulled(store: Store, model: CatalogueEntry, data: bytes = DATA) -> Manifest:
    return pull(model, store, fetchers(ScriptedFetcher(data)), Recorder(), accept_licence=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def test_an_empty_store_creates_nothing(store: Store) -> None:
    assert store.models() == []
    assert not store.home.exists()


def test_a_pulled_model_is_listed_found_and_resolved(store: Store) -> None:
    model = entry(model_file(DATA), TERMS)
    manifest = pulled(store, model)
    assert Store(store.home).models() == [manifest]
    assert manifest.accepted_at and manifest.licence_id == "LicenseRef-Gemma" and manifest.size == 5000
    assert store.find(ModelName("toy")) == store.find(ModelName("toy", "1b")) == manifest
    assert store.find(ModelName("toy", "2b")) is None
    found = resolve("toy", store, Catalogue((model,)))
    assert isinstance(found, ResolvedModel)
    assert found.served_name == "toy:1b" and found.path.read_bytes() == DATA
    assert found.path.name == f"sha256-{model.files[0].sha256}"


def test_a_model_no_longer_in_the_catalogue_still_works(store: Store) -> None:
    pulled(store, entry(model_file(DATA)))
    assert isinstance(resolve("toy:1b", store, Catalogue(())), ResolvedModel)
    assert isinstance(resolve("toy", store, Catalogue(())), ResolvedModel)


def test_a_shared_blob_lives_as_long_as_its_last_model(store: Store) -> None:
    first = pulled(store, entry(model_file(DATA), name="a"))
    second = pulled(store, entry(model_file(DATA), name="b"))
    blob = store.blob(first.files[0].sha256)
    assert store.remove(first) == 0
    assert blob.exists() and store.models() == [second]
    assert store.remove(second) == 5000
    assert not blob.exists() and store.models() == []
    assert list(store.manifests.iterdir()) == []


def test_size_is_always_checked_and_every_byte_on_demand(store: Store) -> None:
    model = entry(model_file(DATA))
    manifest = pulled(store, model)
    blob = store.blob(manifest.files[0].sha256)
    assert store.problems(manifest, read_all=True) == []
    blob.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    assert store.problems(manifest) == []
    assert "has the sha256" in store.problems(manifest, read_all=True)[0]
    blob.write_bytes(DATA[:-1])
    assert "has 4999 bytes instead of 5000" in store.problems(manifest)[0]
    with pytest.raises(ModelFileError, match=r"toy:1b is damaged: .*Run `tuili pull toy:1b` to repair"):
        resolve("toy", store, Catalogue((model,)))
    blob.unlink()
    assert "is missing" in store.problems(manifest)[0]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema": 2}', '{"schema": 1, "files": [{"name": "x"}]}', '{"schema": 1, "files": 3, "extra": 1}'],
)
def test_a_damaged_manifest_is_named(store: Store, text: str) -> None:
    path = store.manifests / "toy" / "1b.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ModelFileError, match=f"{path} is damaged"):
        store.models()


def test_a_manifest_cannot_point_outside_the_store(store: Store) -> None:
    """D-SEC-2: a digest is 64 hexadecimal digits, so a blob's path cannot leave the folder."""
    manifest = pulled(store, entry(model_file(DATA)))
    path = store.manifests / "toy" / "1b.json"
    path.write_text(path.read_text().replace(manifest.files[0].sha256, "../" * 10 + "etc/passwd"))
    with pytest.raises(ModelFileError, match="a digest is malformed"):
        store.models()
    other = store.manifests / "..hidden"
    other.mkdir()
    (other / "x.json").write_text("{}")
    path.unlink()
    assert store.models() == []
