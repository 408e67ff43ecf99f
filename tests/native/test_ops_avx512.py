"""The AVX-512 row ops, attention and scans on a CPU without AVX-512: compiled against an emulation, compared bit for bit."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tuili import _native

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "native" / "kernels"
EMULATION = Path(__file__).parent / "emulate"
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", f"-I{ROOT / 'native'}"]
ISA = ["-mavx2", "-mfma", "-mf16c", f"-I{EMULATION}"]


@pytest.mark.slow
@pytest.mark.skipif(_native.best_isa() < 1, reason="the emulation itself needs AVX2")
def test_emulated_avx512_equals_generic(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    sources = {
        KERNELS / "avx512" / "ops.cpp": ISA,
        KERNELS / "generic" / "ops.cpp": [],
        EMULATION / "compare_ops.cpp": [],
    }
    objects = [tmp_path / f"{index}.o" for index in range(len(sources))]
    for target, (source, flags) in zip(objects, sources.items(), strict=True):
        subprocess.run([compiler, *FLAGS, *flags, "-c", str(source), "-o", str(target)], check=True)
    program = tmp_path / "compare"
    subprocess.run([compiler, *map(str, objects), "-o", str(program)], check=True)
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert result.stdout == "equal\n"
