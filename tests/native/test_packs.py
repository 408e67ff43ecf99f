"""Packed weights from a pack are those from the model file, bit for bit; a pack that is not right is said and made again."""

import logging
from pathlib import Path

import numpy as np
import pytest

from support.steps import Sequences, limits_for
from tuili.backends.base import Loading, PackStore
from tuili.backends.cpu import packing
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.cpu.native import ISA_NAMES, best_isa, extension, layout_digest
from tuili.models.load import build_program
from tuili.models.registry import architectures
from tuili.program.program import Program
from tuili.quant.registry import FORMATS
from tuili.weights.dummy import dummy_weights
from tuili.weights.source import Weight

TOKENS = [1, 5, 9, 2, 7]


def program_of(name: str) -> Program:
    arch = architectures()[name]
    return build_program(arch, arch.spec(arch.tiny(), 128))


def weights_of(program: Program) -> dict[str, Weight]:
    shapes = {name: decl.shape for name, decl in program.weights.items()}
    return dict(dummy_weights(shapes, 1, lambda name, shape: "Q8_0" if len(shape) > 1 and shape[-1] % 32 == 0 else "F32"))


def packs(folder: Path, *, write: bool = False, content: str = "the file") -> PackStore:
    return PackStore(folder, content, "recipe", write, 10**9)


def logits(program: Program, store: PackStore | None, isa: object = None) -> tuple[np.ndarray, str]:
    limits = limits_for(program, max_model_len=64, max_num_seqs=2, max_tokens=32)
    executable = CpuBackend(isa, threads=2).load(program, weights_of(program), limits, Loading(store))  # type: ignore[arg-type]
    out = Sequences(executable, program, limits).feed({0: TOKENS})
    return out, executable.description["weights"]


def pack_in(folder: Path) -> Path:
    (path,) = folder.glob("*.pack")
    return path


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_a_pack_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    program = program_of(name)
    plain, _ = logits(program, None)
    written, origin = logits(program, packs(tmp_path, write=True))
    assert "packed in" in origin
    mapped, origin = logits(program, packs(tmp_path))
    assert "pack cache" in origin
    assert plain.tobytes() == written.tobytes() == mapped.tobytes()


def test_nothing_is_kept_unasked(tmp_path: Path) -> None:
    logits(program_of("llama"), packs(tmp_path / "pack"))
    assert not (tmp_path / "pack").exists()


def test_every_level_has_its_own_pack(tmp_path: Path) -> None:
    program = program_of("llama")
    levels = ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1]
    results = [logits(program, packs(tmp_path, write=True), level)[0].tobytes() for level in levels]
    assert len(list(tmp_path.glob("*.pack"))) == len(levels)
    assert [logits(program, packs(tmp_path), level)[0].tobytes() for level in levels] == results


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "foreign"])
def test_a_damaged_pack_is_said_and_made_again(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = program_of("llama")
    right, _ = logits(program, packs(tmp_path, write=True))
    path = pack_in(tmp_path)
    whole = path.read_bytes()
    middle = len(whole) - 4096 - 500  # in the last matrix
    path.write_bytes(
        {
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "cut": whole[:-5000],
            "empty": b"",
            "foreign": b"GGUF" * 100,
        }[damage]
    )
    with caplog.at_level(logging.WARNING):
        again, origin = logits(program, packs(tmp_path))
    assert again.tobytes() == right.tobytes() and "packed in" in origin
    assert "packing them again" in caplog.text and str(path) in caplog.text
    assert path.read_bytes() == whole
    assert "pack cache" in logits(program, packs(tmp_path))[1]


def test_a_pack_of_other_numerics_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = program_of("llama")
    with monkeypatch.context() as patch:
        patch.setattr(packing, "NUMERICS_VERSION", 999)
        logits(program, packs(tmp_path, write=True))
    _, origin = logits(program, packs(tmp_path))
    assert "packed in" in origin and "numerics version 999" in caplog.text


def test_a_pack_that_cannot_be_kept_does_not_stop_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    _, origin = logits(program_of("llama"), packs(tmp_path / "file" / "pack", write=True))
    assert "packed in" in origin and "cannot be kept" in caplog.text


def test_a_pack_may_vanish_while_it_is_mapped(tmp_path: Path) -> None:
    program = program_of("llama")
    right, _ = logits(program, packs(tmp_path, write=True))
    limits = limits_for(program, max_model_len=64, max_num_seqs=2, max_tokens=32)
    executable = CpuBackend(threads=2).load(program, weights_of(program), limits, Loading(packs(tmp_path)))
    pack_in(tmp_path).unlink()
    assert Sequences(executable, program, limits).feed({0: TOKENS}).tobytes() == right.tobytes()


def test_compiling_says_whether_it_had_to(tmp_path: Path) -> None:
    program = program_of("llama")
    stages: list[str] = []
    loading = Loading(packs(tmp_path, write=True), lambda stage, done, total: stages.append(stage))
    path, is_new = CpuBackend(threads=2).compile(program, weights_of(program), loading)
    assert is_new and path == pack_in(tmp_path) and set(stages) == {"packing", "writing"}
    assert CpuBackend(threads=2).compile(program, weights_of(program), loading) == (path, False)


def test_mapped_weights_cannot_be_packed_into(tmp_path: Path) -> None:
    data = bytes(range(256)) * 16
    file = tmp_path / "pack"
    file.write_bytes(data + bytes(extension().Executor.PACK_PADDING))
    executor = extension().Executor(0, 1)
    digest = extension().xxh64(data)
    assert executor.map_weights(str(file), 0, len(data), [digest ^ 1]) == 0
    assert executor.map_weights(str(file), 0, len(data), [digest, digest]) == 1
    assert executor.map_weights(str(file), 0, len(data), [digest]) == -1
    assert executor.packed_data().tobytes() == data and executor.packed_digests() == [digest]
    weight = executor.place(FORMATS["F32"].ggml_type, 1, 16, 32)
    with pytest.raises(RuntimeError, match="packed already"):
        executor.pack(weight, 0, 0, np.zeros((16, 128), np.uint8))
    with pytest.raises(ValueError, match="ends before"):
        executor.map_weights(str(file), 0, len(data) + 1, [digest])
    with pytest.raises(RuntimeError, match="no-such-file"):
        executor.map_weights(str(tmp_path / "no-such-file"), 0, 1, [digest])


def test_xxh64_is_the_published_one() -> None:
    """Values of xxhsum 0.8 for the empty text, a short one, and ones around its block of 32 bytes."""
    known = {b"": 0xEF46DB3751D8E999, b"a": 0xD24EC4F1A98C6E5B, b"abc": 0x44BC2CF5AD770999}
    assert {text: extension().xxh64(text) for text in known} == known
    assert extension().xxh64(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1


def test_the_layout_of_a_level_has_a_name_that_stays() -> None:
    names = sorted(FORMATS)
    for level in ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1]:
        assert layout_digest(level, names) == layout_digest(level, names) != layout_digest(level, names[1:])
