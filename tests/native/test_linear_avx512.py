"""The AVX-512 kernels on a CPU without AVX-512: compiled against an emulation of its instructions, compared bit for bit."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tuili import _native

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "native" / "kernels"
EMULATION = Path(__file__).parent / "emulate"
SMALL_CODE = ["-O1", "-DTUILI_INLINE=inline", "-DTUILI_UNROLL=", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
ISA = ["-mavx2", "-mfma", "-mf16c"]


@pytest.mark.slow
@pytest.mark.skipif("avx2" not in _native.linear_levels(), reason="the emulation itself needs AVX2")
def test_emulated_avx512_equals_generic(tmp_path: Path) -> None:
    """Every format, few rows and many, plain and gated: linear, unpack_row and gate_up_act give the bits of the generic level."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    objects: list[Path] = []

    def compile_with(source: Path, *flags: str) -> None:
        target = tmp_path / f"{len(objects)}.o"
        command = [compiler, "-std=c++20", *SMALL_CODE, *flags, f"-I{ROOT / 'native'}", "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        objects.append(target)

    for source in sorted((KERNELS / "avx512").glob("linear*.cpp")):
        compile_with(source, *ISA, f"-I{EMULATION}")
    for source in sorted((KERNELS / "generic").glob("linear*.cpp")):
        compile_with(source)
    compile_with(EMULATION / "compare.cpp")
    program = tmp_path / "compare"
    subprocess.run([compiler, *map(str, objects), "-o", str(program)], check=True)
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert result.stdout == "equal\n"
