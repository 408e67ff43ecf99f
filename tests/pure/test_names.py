"""What may be called a model, and what is refused."""

from pathlib import Path

import pytest

from support.library import FREE, entry, model_file
from tuili.errors import InvalidRequest, ModelFileError, ModelNotFound, NotSupported
from tuili.library.catalogue import Catalogue, load_catalogue, parse_catalogue
from tuili.library.names import ModelName, parse_name, parse_reference
from tuili.library.resolve import NotHereYet, ResolvedModel, resolve
from tuili.library.store import Store

HOSTILE = [
    "../../etc/passwd",
    "a/../../b",
    "%2e%2e%2fx",
    "/abs",
    "C:\\x",
    "a\0b",
    "x" * 5000,
    "name:" + "x" * 5000,
    ".hidden",
    "con",
    "CON.gguf",
    "name:nul",
    "com1",
    "",
    ":",
    "a:",
    ":b",
    "a:b:c",
    "a..b",
    "a b",
    "a\nb",
    "-rf",
    "a.",
    "名前",
    "a:../b",
    "~root",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_refused(text: str) -> None:
    """D-SEC-2: a name never becomes a path outside the models' folder; the message stays short whatever was sent."""
    with pytest.raises(InvalidRequest) as caught:
        parse_name(text)
    assert len(str(caught.value)) < 400
    assert caught.value.field == "model"


def test_hostile_names_touch_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-SEC-2: listing of the folder above the store is the same before and after; paths are looked at, never written."""
    monkeypatch.chdir(tmp_path)  # from a shallow folder, ../../etc/passwd is a file that exists
    store = Store(tmp_path / "home")
    before = sorted(tmp_path.rglob("*"))
    for text in HOSTILE:
        with pytest.raises((InvalidRequest, ModelNotFound, ModelFileError)):
            resolve(text, store, load_catalogue())
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smollm2", ModelName("smollm2")),
        ("SmolLM2:135M", ModelName("smollm2", "135m")),
        (" qwen2.5-coder:0.5b ", ModelName("qwen2.5-coder", "0.5b")),
        ("a", ModelName("a")),
        ("console:aux1", ModelName("console", "aux1")),
    ],
)
def test_ordinary_names(text: str, expected: ModelName) -> None:
    assert parse_name(text) == expected
    assert parse_reference(text) == expected


@pytest.mark.parametrize("text", ["./model", "dir/file", "model.gguf", "MODEL.GGUF", "/abs/x.gguf", "..\\x"])
def test_paths_are_recognised(text: str) -> None:
    assert parse_reference(text) == Path(text)


def test_home_in_a_path_is_expanded() -> None:
    assert parse_reference("~/x.gguf") == Path.home() / "x.gguf"


def test_hub_names_are_refused_by_name() -> None:
    with pytest.raises(NotSupported, match="hf:owner/repo:Q4_K_M"):
        parse_reference("hf:owner/repo:Q4_K_M")
    with pytest.raises(NotSupported, match=r"'https://example\.org/model\.gguf': .* download the \.gguf file"):
        parse_reference("https://example.org/model.gguf")


def test_catalogue_names_and_defaults() -> None:
    catalogue = load_catalogue()
    assert catalogue.get(ModelName("smollm2")).full_name == "smollm2:135m"
    assert catalogue.get(ModelName("gemma3")).full_name == "gemma3:270m"
    assert catalogue.get(ModelName("qwen2.5-coder")).full_name == "qwen2.5-coder:0.5b"
    assert catalogue.get(ModelName("qwen2.5-coder", "1.5b")).size == 1117320768
    assert [e.full_name for e in catalogue.entries if e.licence.must_accept] == ["gemma3:270m"]
    for model in catalogue.entries:
        assert parse_name(model.full_name) == ModelName(model.name, model.tag)
        assert all(file.sources and len(file.sha256) == 64 for file in model.files)


def test_parts_that_do_not_add_up_are_a_bug() -> None:
    text = (
        '[licence.x]\nid="x"\ntitle="x"\nurl="x"\nsummary="x"\n[[model]]\nname="a"\ntag="b"\ntitle="t"\nparameters="1"\ncontext=1\n'
        'chat=true\nlicence="x"\n[[model.file]]\nname="f"\nsize=3\nsha256="0"\n'
        '[[model.file.source]]\nkind="package"\nparts=[["p","1","m",2]]\n'
    )
    with pytest.raises(ValueError, match="do not add up to 3 bytes"):
        parse_catalogue(text)


@pytest.mark.parametrize(
    ("asked", "suggested"),
    [
        ("smolm2", "smollm2:135m"),
        ("qwen2.5-coder:7b", "qwen2.5-coder:0.5b or qwen2.5-coder:1.5b"),
        ("gemma", "gemma3:270m"),
        ("gpt-oss", "known are"),
    ],
)
def test_unknown_names_suggest_the_nearest(asked: str, suggested: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=suggested) as caught:
        resolve(asked, Store(tmp_path), load_catalogue())
    assert asked in str(caught.value)


def test_resolve_paths(tmp_path: Path) -> None:
    store, catalogue = Store(tmp_path / "home"), Catalogue((entry(model_file(b"x"), FREE),))
    file = tmp_path / "my-model.gguf"
    file.write_bytes(b"x")
    assert resolve(str(file), store, catalogue) == ResolvedModel(file, "my-model")
    with pytest.raises(ModelNotFound, match=r"there is no file .*my-modle\.gguf: .* holds my-model\.gguf"):
        resolve(str(tmp_path / "my-modle.gguf"), store, catalogue)
    with pytest.raises(ModelFileError, match=r"is a folder, give one of its files: my-model\.gguf"):
        resolve(f"{tmp_path}/", store, catalogue)
    with pytest.raises(ModelNotFound):
        resolve("/" + "x" * 5000, store, catalogue)
    with pytest.raises(ModelNotFound, match=r"there is no file owner/repo-GGUF: .* of any other model, download the \.gguf file"):
        resolve("owner/repo-GGUF", store, catalogue)
    assert isinstance(resolve("toy", store, catalogue), NotHereYet)
