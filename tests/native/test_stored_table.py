"""An embedding that nothing is multiplied with is read where it lies in the model file, and its pages do not stay."""

import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from support.steps import Sequences, limits_for
from tuili.backends.cpu.executor import CpuBackend
from tuili.models.load import build_program
from tuili.models.registry import architectures
from tuili.program.program import Program
from tuili.weights.dummy import dummy_weights
from tuili.weights.source import Weight

VOCAB = 32768


def program(tied: bool) -> Program:
    arch = architectures()["llama"]
    return build_program(arch, arch.spec({**arch.tiny(), "vocab_size": VOCAB, "tie_word_embeddings": tied}, 512))


def weights_of(made: Program, table: np.ndarray) -> dict[str, Weight]:
    shapes = {name: decl.shape for name, decl in made.weights.items()}
    weights = dict(dummy_weights(shapes, 1, lambda name, shape: "F32"))
    return weights | {"model.embed_tokens.weight": Weight("F32", (VOCAB, table.shape[1] // 4), {"data": table})}


def mapped_table(path: Path, columns: int) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((VOCAB, columns)).astype(np.float32)
    path.write_bytes(values.tobytes())
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(whole, np.uint8).reshape(VOCAB, -1)


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in our memory."""
    smaps = Path("/proc/self/smaps").read_text()
    return sum(int(kilobytes) << 10 for kilobytes in re.findall(rf"{path}\n(?:\w+:.*\n)*?Rss: +(\d+) kB", smaps))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_pages_of_the_table_are_given_back(tmp_path: Path) -> None:
    made = program(tied=False)
    columns = made.weights["model.embed_tokens.weight"].shape[-1]
    path = tmp_path / "table"
    table = mapped_table(path, columns)
    limits = limits_for(made, max_model_len=512, max_num_seqs=1, max_tokens=300)
    executable = CpuBackend(threads=2).load(made, weights_of(made, table), limits)
    tokens = np.random.default_rng(1).integers(0, VOCAB, 300).tolist()
    sequences = Sequences(executable, made, limits)
    sequences.feed({0: tokens[:200]})
    assert resident(path) > 0, "so it is read from the file"
    sequences.feed({0: tokens[200:300]})
    assert resident(path) == 0


def test_the_table_outlives_whoever_opened_the_file(tmp_path: Path) -> None:
    made = program(tied=False)
    path = tmp_path / "table"
    table = mapped_table(path, made.weights["model.embed_tokens.weight"].shape[-1])
    limits = limits_for(made, max_model_len=512, max_num_seqs=1, max_tokens=300)
    in_memory = CpuBackend(threads=2).load(made, weights_of(made, table.copy()), limits)
    stored = CpuBackend(threads=2).load(made, weights_of(made, table), limits)
    del table
    path.unlink()
    tokens = list(range(0, VOCAB, 301))
    results = [Sequences(executable, made, limits).feed({0: tokens}).tobytes() for executable in (in_memory, stored)]
    assert results[0] == results[1]
