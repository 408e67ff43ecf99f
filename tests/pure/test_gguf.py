"""The GGUF reader: what a file holds comes out as it is; whatever a file claims is checked first."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from support import models
from support.gguf_file import (
    ARRAY,
    BOOL,
    F64,
    I8,
    I16,
    I32,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Header,
    TensorRecord,
    Typed,
    gguf_bytes,
    tensor,
    write_gguf,
)
from support.random_blocks import any_bits
from tuili.errors import ModelFileError, ModelNotFound, NotSupported
from tuili.quant.registry import FORMATS
from tuili.weights.gguf import open_gguf

MB = 1 << 20


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def small_file() -> bytes:
    """A bit of everything, in under two kilobytes: what the fuzz tests damage."""
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "llama.rope.scale": 0.5,
        "flag": True,
        "tokenizer.ggml.tokens": ["<s>", "a", "", "é", "x" * 300],
        "tokenizer.ggml.scores": [0.0, -1.5],
        "flags": [True, False],
        "long": Typed(U64, 2**63),
    }
    q8 = any_bits(FORMATS["Q8_0"], 4, seed=1).tobytes()
    return gguf_bytes(
        metadata, [tensor("a.weight", matrix(3, 4)), TensorRecord("b.weight", 8, (2, 64), q8), tensor("n", matrix(1, 8)[0])]
    )


def refused(path: Path, *fragments: str) -> ModelFileError:
    """Opening fails with the reader's own error, which names the file and all fragments, and allocates little."""
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as caught:
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 100 * MB
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message
    for fragment in (path.name, *fragments):
        assert fragment in message, message
    return caught.value


# What is in the file


def test_every_metadata_type_comes_out_as_it_went_in(tmp_path: Path) -> None:
    metadata = {
        "u8": Typed(U8, 200),
        "i8": Typed(I8, -100),
        "u16": Typed(U16, 65535),
        "i16": Typed(I16, -32768),
        "u32": 4_000_000_000,
        "i32": Typed(I32, -5),
        "u64": Typed(U64, 2**64 - 1),
        "i64": -(2**40),
        "f32": 0.5,
        "f64": Typed(F64, 0.1),
        "yes": True,
        "no": False,
        "text": "日本語\0\n",
        "empty": "",
        "strings": ["a", "", "ü"],
        "no strings": Typed(ARRAY, [], item=STRING),
        "i8s": Typed(ARRAY, [-1, 1], item=I8),
        "floats": [1.5, -2.0],
        "bools": [True, False],
        "none": Typed(ARRAY, [], item=U32),
    }
    source = open_gguf(write_gguf(tmp_path / "m.gguf", metadata))
    expected = {key: value.value if isinstance(value, Typed) else value for key, value in metadata.items()}
    assert dict(source.metadata) == expected
    assert source.metadata["yes"] is True
    assert type(source.metadata["u8"]) is int


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_tensors_of_every_format(tmp_path: Path, version: int, alignment: int) -> None:
    records = []
    for seed, fmt in enumerate(FORMATS.values()):
        data = any_bits(fmt, 6, seed)
        records.append(TensorRecord(f"{fmt.name}.weight", fmt.ggml_type, (3, 2 * fmt.block_size), data.tobytes()))
    header = Header(version=version, alignment=alignment)
    source = open_gguf(write_gguf(tmp_path / "m.gguf", {"general.alignment": alignment}, records, header))
    assert list(source.names()) == [record.name for record in records]
    for record in records:
        weight = source.tensor(record.name)
        assert (f"{weight.format}.weight", weight.shape) == (record.name, record.shape)
        assert weight.data.shape == (3, FORMATS[weight.format].row_bytes(record.shape[1]))
        assert weight.data.tobytes() == record.data
        assert not weight.data.flags.writeable


def test_shapes_are_reversed_to_hugging_face_order(tmp_path: Path) -> None:
    experts = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    path = write_gguf(tmp_path / "m.gguf", {}, [tensor("e", experts)])
    assert b"\x04\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x02" in path.read_bytes()
    weight = open_gguf(path).tensor("e")
    assert weight.shape == (2, 3, 4)
    assert (FORMATS["F32"].decode(weight.data) == experts).all()


def test_invalid_utf8_is_kept(tmp_path: Path) -> None:
    raw = [b"\xff\xfe", b"ok", b"\xe6\x97", b"\x80"]
    source = open_gguf(write_gguf(tmp_path / "m.gguf", {"t": Typed(ARRAY, raw, item=STRING), "s": Typed(STRING, b"a\xff")}))
    tokens = source.metadata["t"]
    assert isinstance(tokens, list)
    assert [str(token).encode("utf-8", "surrogateescape") for token in tokens] == raw
    assert source.metadata["s"] == "a\udcff"


@pytest.mark.parametrize("long_every", [0, 97, 5000])
def test_a_large_vocabulary(tmp_path: Path, long_every: int) -> None:
    """Length fields are located many at a time; long, empty and zero-holding strings in between break that run."""
    odd = ["x" * 300, "", "\0\0\0\0\0\0\0\0\0", "y" * 255, "z" * 256, "\0"]
    tokens = [f"▁token{i}" for i in range(60_000)]
    if long_every:
        for n, i in enumerate(range(0, len(tokens), long_every)):
            tokens[i] = odd[n % len(odd)]
    path = write_gguf(tmp_path / "m.gguf", {"tokens": tokens, "after": "still here"})
    metadata = open_gguf(path).metadata
    assert metadata["after"] == "still here"
    assert metadata["tokens"] == tokens


def test_views_outlive_the_source_and_release_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_file())
    source = open_gguf(path)
    data = source.tensor("a.weight").data
    before = data.copy()
    source.release()
    assert (data == before).all()
    source.close()
    assert (data == before).all()
    assert list(source.names()) == []


def test_an_absent_tensor_and_an_absent_file_are_named(tmp_path: Path) -> None:
    source = open_gguf(write_gguf(tmp_path / "m.gguf", {}, [tensor("a", matrix(1, 4))]))
    with pytest.raises(ModelFileError, match=r"m\.gguf: there is no tensor output\.weight among the 1"):
        source.tensor("output.weight")
    with pytest.raises(ModelNotFound, match=r"gone\.gguf: there is no such file"):
        open_gguf(tmp_path / "gone.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        open_gguf(tmp_path)


def test_unknown_tensor_types_are_named_when_used(tmp_path: Path) -> None:
    """D-GGUF-2: type numbers 36 and 250, and a known one without a decoder. The rest of the file stays readable."""
    records = [
        TensorRecord("a", 36, (4,), bytes(32)),
        TensorRecord("b", 250, (4,), bytes(32)),
        TensorRecord("c", 16, (256,), bytes(66)),
    ]
    source = open_gguf(write_gguf(tmp_path / "m.gguf", {}, [*records, tensor("d", matrix(1, 4))]))
    for name, fragment in (("a", "36"), ("b", "unknown tensor type number 250"), ("c", "IQ2_XXS")):
        with pytest.raises(NotSupported, match=fragment) as caught:
            source.tensor(name)
        assert f"tensor {name}" in str(caught.value) and "Q4_K" in str(caught.value)
    assert source.tensor("d").shape == (1, 4)
    assert [source.type_name(name) for name in "abcd"] == ["IQ4_NL_4_4 or I2_S", "type 250", "IQ2_XXS", "F32"]


@pytest.mark.parametrize("version", [0, 1, 4, 2**31])
def test_other_versions_are_refused(tmp_path: Path, version: int) -> None:
    """D-GGUF-2: versions 1 and 4 among them."""
    refused(write_gguf(tmp_path / "m.gguf", {}, header=Header(version=version)), "version")


def test_big_endian_is_refused_by_name(tmp_path: Path) -> None:
    refused(write_gguf(tmp_path / "m.gguf", {}, header=Header(order=">")), "big-endian")


# Hostile and damaged files (D-GGUF-1)


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG image"),
        (b"PK\x03\x04" + bytes(100), "a zip archive"),
        (b"\x80\x02}q\x00." + bytes(100), "pickle"),
        (b"\x40\0\0\0\0\0\0\0{" + b' "a": 1}'.ljust(100), "a safetensors file"),
        (b"<!DOCTYPE html>" + bytes(100), "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n" + bytes(90), "Git LFS pointer"),
        (b"tjgg" + bytes(100), "the format before GGUF"),
        (bytes(200), "zeros"),
        (b"", "0 bytes"),
        (b"GGU", "3 bytes"),
        (b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "20 bytes"),
        (b"abcdefgh" * 9, "b'abcd'"),
    ],
)
def test_other_files_are_recognised(tmp_path: Path, content: bytes, fragment: str) -> None:
    """D-GGUF-1, and files of other kinds renamed to .gguf."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refused(path, fragment)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """D-GGUF-1: inside the header, the metadata, the tensor table and the data, down to the last byte that is used."""
    whole = small_file()
    path = tmp_path / "cut.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        try:
            open_gguf(path)
        except ModelFileError as error:
            assert "cut.gguf" in str(error)
        else:
            assert not any(whole[size:]), f"{size} of {len(whole)} bytes were accepted"
    path.write_bytes(whole)
    open_gguf(path)


@pytest.mark.parametrize(
    ("metadata", "header", "fragments"),
    [
        ({}, Header(num_tensors=2**62), (str(2**62), "tensors")),
        ({}, Header(num_metadata=2**40), (str(2**40), "metadata entries")),
        ({"a": Typed(ARRAY, [1], item=U8, count=2**40)}, None, ("a ", str(2**40))),
        ({"a": Typed(ARRAY, [1], item=U64, count=2**63)}, None, ("a ", str(2**63))),
        ({"a": Typed(ARRAY, ["b"], item=STRING, count=2**61)}, None, ("a ", str(2**61))),
        ({"a": Typed(ARRAY, ["b"] * 9, item=STRING, count=40)}, None, ("a",)),
        ({"a": Typed(13, b"\0" * 8)}, None, ("value type 13",)),
        ({"a": Typed(ARRAY, [], item=77)}, None, ("value type 77",)),
        ({"a": Typed(BOOL, 2)}, None, ("a", "2")),
        ({"general.alignment": 0}, None, ("general.alignment", "0")),
        ({"general.alignment": 3}, None, ("general.alignment", "3")),
        ({"general.alignment": Typed(I32, 32)}, None, ("general.alignment", "32", "type 5")),
        ({"general.alignment": "32"}, None, ("general.alignment", "'32'")),
    ],
)
def test_absurd_metadata_is_refused(
    tmp_path: Path, metadata: dict[str, object], header: Header | None, fragments: tuple[str, ...]
) -> None:
    """D-GGUF-1: absurd counts and lengths, unknown value types, bad alignments."""
    refused(write_gguf(tmp_path / "m.gguf", metadata, header=header), *fragments)


def test_arrays_of_arrays_are_refused_at_any_depth(tmp_path: Path) -> None:
    """D-GGUF-1: 5000 deep."""
    nested = Typed(ARRAY, [], item=U8)
    for _ in range(3):
        nested = Typed(ARRAY, [nested], item=ARRAY)
    refused(write_gguf(tmp_path / "m.gguf", {"a": nested}), "arrays of arrays")
    head = gguf_bytes({"a": Typed(ARRAY, [], item=ARRAY, count=1)})
    level = (9).to_bytes(4, "little") + (1).to_bytes(8, "little")
    path = tmp_path / "deep.gguf"
    path.write_bytes(head + level * 5000)
    refused(path, "arrays of arrays")


def test_a_huge_but_present_array_is_refused(tmp_path: Path) -> None:
    """The bytes are there (as a hole in the file), so only the limit keeps a list of them from being made."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({"a": Typed(ARRAY, [], item=U8, count=3 << 30)}))
    with path.open("r+b") as file:
        file.truncate(4 << 30)
    refused(path, "a:", str(3 << 30))


@pytest.mark.parametrize(
    ("record", "fragments"),
    [
        (TensorRecord("w", 0, (2**42 + 1, 4), bytes(64)), ("w", str(2**42 + 1), "ends at byte")),
        (TensorRecord("w", 0, (2**63, 2**63, 2**63, 2**63), bytes(64)), ("w", str(2**63), "ends at byte")),
        (TensorRecord("w", 0, (4, 0), b""), ("w", "[4, 0]")),
        (TensorRecord("w", 0, (), b""), ("w", "0 dimensions")),
        (TensorRecord("w", 0, (1, 1, 1, 1, 4), bytes(16)), ("w", "5 dimensions")),
        (TensorRecord("w", 0, (4,), bytes(16), offset=2**40), ("w", "ends at byte")),
        (TensorRecord("w", 250, (4,), bytes(16), offset=2**40), ("w", "ends at byte")),
        (TensorRecord("w", 0, (4,), bytes(64), offset=7), ("w", "7", "alignment 32")),
        (TensorRecord("w", 12, (2, 300), bytes(1000)), ("w", "256", "300")),
        (TensorRecord("w", 8, (33,), bytes(68)), ("w", "32", "33")),
    ],
)
def test_absurd_tensors_are_refused(tmp_path: Path, record: TensorRecord, fragments: tuple[str, ...]) -> None:
    """D-GGUF-1: shapes, offsets and blocks that do not fit, both numbers in the message."""
    refused(write_gguf(tmp_path / "m.gguf", {}, [record]), *fragments)


def test_overlapping_and_repeated_names_are_refused(tmp_path: Path) -> None:
    """D-GGUF-1: two tensors over the same bytes; names and keys that occur twice."""
    a, b = TensorRecord("a", 0, (16,), bytes(64)), TensorRecord("b", 0, (16,), bytes(64), offset=32)
    refused(write_gguf(tmp_path / "m.gguf", {}, [a, b]), "tensor b", "inside a")
    refused(write_gguf(tmp_path / "m.gguf", {}, [a, a]), "tensor a", "twice")
    twice = gguf_bytes({"k": 1}, header=Header(num_metadata=2)).rstrip(b"\0") + bytes(3) + gguf_bytes({"k": 1})[24:]
    (tmp_path / "k.gguf").write_bytes(twice)
    refused(tmp_path / "k.gguf", "k", "twice")


def use_everything(path: Path) -> None:
    source = open_gguf(path)
    for key in source.metadata:
        source.metadata[key]
    for name in source.names():
        source.tensor(name).data.sum()


def flip_bytes(path: Path, head: bytes, write: Callable[[bytes], object], use: Callable[[Path], object]) -> int:
    """2000 times damages one random byte; only success or ModelFileError may come of it. Returns how often it was refused."""
    rng = np.random.default_rng(7)
    refusals = 0
    for position, value in zip(rng.integers(0, len(head), 2000), rng.integers(1, 256, 2000), strict=True):
        damaged = bytearray(head)
        damaged[position] ^= int(value)
        write(bytes(damaged))
        try:
            use(path)
        except ModelFileError:
            refusals += 1
    return refusals


def test_single_byte_flips(tmp_path: Path) -> None:
    """D-GGUF-1: 2000 random single-byte flips give success or the loader's own error, nothing else."""
    path = tmp_path / "m.gguf"
    refusals = flip_bytes(path, small_file(), path.write_bytes, use_everything)
    assert 300 < refusals < 1900


# Shards


def write_shards(folder: Path, count: int = 3, **changes: dict[str, object]) -> list[Path]:
    """``changes``: shard number as text -> metadata to override."""
    paths = []
    for number in range(count):
        metadata: dict[str, object] = {
            "split.no": Typed(U16, number),
            "split.count": Typed(U16, count),
            "split.tensors.count": Typed(I32, 2 * count),
        }
        if number == 0:
            metadata["general.architecture"] = "llama"
        metadata |= changes.get(f"shard{number}", {})
        records = [tensor(f"{number}.{part}", matrix(2, 8, seed=10 * number + part)) for part in range(2)]
        paths.append(write_gguf(folder / f"m-{number + 1:05}-of-{count:05}.gguf", metadata, records))
    return paths


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_shards_open_from_any_of_them(tmp_path: Path, opened: int) -> None:
    paths = write_shards(tmp_path)
    source = open_gguf(paths[opened])
    assert source.paths == tuple(paths)
    assert source.metadata["general.architecture"] == "llama"
    assert list(source.names()) == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]
    for number in range(3):
        assert (FORMATS["F32"].decode(source.tensor(f"{number}.1").data) == matrix(2, 8, seed=10 * number + 1)).all()


def test_broken_sets_of_shards_are_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, shard1={"split.no": Typed(U16, 2)})
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003\.gguf: split\.no is 2.*1"):
        open_gguf(paths[0])
    paths = write_shards(tmp_path, shard2={"split.count": Typed(U16, 4)})
    with pytest.raises(ModelFileError, match=r"m-00003-of-00003\.gguf: split\.count is 4.*3"):
        open_gguf(paths[0])
    paths = write_shards(tmp_path, shard0={"split.tensors.count": Typed(I32, 7)})
    with pytest.raises(ModelFileError, match=r"split\.tensors\.count is 7, and the shards hold 6"):
        open_gguf(paths[1])
    paths = write_shards(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003\.gguf: shard 2 of 3 is missing"):
        open_gguf(paths[2])
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match=r"model\.gguf: is one of 3 shards"):
        open_gguf(renamed)


# Real files


def header_copy(real: Path, copy: Path, size: int) -> bytes:
    """The first 2 MB of the real file, then a hole up to ``size``: as good as the whole file, since the data is not looked at."""
    head = real.read_bytes()[: 2 * MB]
    copy.write_bytes(head)
    with copy.open("r+b") as file:
        file.truncate(size)
    return head


@pytest.mark.real
def test_smollm2_is_read_as_the_gguf_package_reads_it() -> None:
    path = models.path("smollm2:135m")
    source, expected = open_gguf(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in expected.fields.items() if not key.startswith("GGUF.")}
    assert dict(source.metadata) == fields
    assert list(source.names()) == [t.name for t in expected.tensors]
    for t in expected.tensors:
        weight = source.tensor(t.name)
        assert (weight.format, weight.shape) == (t.tensor_type.name, tuple(reversed(t.shape.tolist())))
        assert weight.data.tobytes() == t.data.tobytes()


@pytest.mark.real
@pytest.mark.parametrize("name", list(models.FILES))
def test_real_tensors_decode_as_the_gguf_package_does(name: str) -> None:
    """One tensor of every format that the file holds, its first rows."""
    source = open_gguf(models.path(name))
    weights = {source.type_name(tensor_name): source.tensor(tensor_name) for tensor_name in source.names()}
    assert len(weights) >= 2
    for weight in weights.values():
        rows = np.array(weight.data[..., :64, :] if weight.data.ndim > 1 else weight.data)
        expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[weight.format])
        assert (FORMATS[weight.format].decode(rows) == expected).all()


@pytest.mark.real
def test_smollm2_cut_short(tmp_path: Path) -> None:
    """D-GGUF-1: 3 bytes, 20 bytes, inside the metadata, inside the tensor table, one byte before the end."""
    real = models.path("smollm2:135m")
    size = real.stat().st_size
    copy = tmp_path / "smol.gguf"
    for cut in (3, 20, 1000, 300_000, 1_700_000, size - 1):
        header_copy(real, copy, size)
        with copy.open("r+b") as file:
            file.truncate(cut)
        refused(copy)
    header_copy(real, copy, size)
    assert len(list(open_gguf(copy).names())) == 272


@pytest.mark.real
@pytest.mark.slow
def test_smollm2_single_byte_flips(tmp_path: Path) -> None:
    """D-GGUF-1: 2000 flips in the first 1 MB."""
    real = models.path("smollm2:135m")
    copy = tmp_path / "smol.gguf"
    head = header_copy(real, copy, real.stat().st_size)

    def write(damaged: bytes) -> None:
        with copy.open("r+b") as file:
            file.write(damaged)

    assert flip_bytes(copy, head[:MB], write, open_gguf) > 100
