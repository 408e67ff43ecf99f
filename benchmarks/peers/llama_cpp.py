"""llama.cpp as a peer: found or built outside the clone, and driven with our token ids through a small C++ program.

The source is the copy inside the llama-cpp-python source package, configured for this machine (GGML_NATIVE=ON). Files go to
$TUILI_BENCH_CACHE, else ~/.cache/tuili-bench.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
DRIVER = Path(__file__).with_name("llama_driver.cpp")
TARGETS = ("llama", "llama-bench")


def cache() -> Path:
    chosen = os.environ.get("TUILI_BENCH_CACHE")
    folder = Path(chosen) if chosen else Path.home() / ".cache" / "tuili-bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class LlamaCpp:
    """A built llama.cpp. ``source`` holds its headers, ``libraries`` its shared libraries."""

    source: Path
    libraries: Path

    @property
    def digest(self) -> str:
        """Tells builds apart in names of cached files."""
        library = self.libraries / "libllama.so"
        return f"{zlib.crc32(f'{self.libraries} {library.stat().st_mtime}'.encode()):08x}"

    @property
    def version(self) -> str:
        text = (self.libraries.parent / "CMakeCache.txt").read_text()
        native = re.search(r"GGML_NATIVE:BOOL=(\w+)", text)
        package = next((part for part in self.source.parts if part.startswith("llama_cpp_python")), self.source.name)
        return f"llama.cpp of {package}, GGML_NATIVE={native[1] if native else '?'}"


def find_or_build(libraries: Path | None = None) -> LlamaCpp:
    """``libraries``: the bin folder of an existing build; None builds one in the cache, once (about ten minutes on two cores)."""
    if libraries is None:
        build = cache() / "llama-build"
        if not (build / "bin" / "llama-bench").exists():
            _build(_fetch(), build)
        libraries = build / "bin"
    cmake_cache = libraries.resolve().parent / "CMakeCache.txt"
    if not cmake_cache.exists():
        sys.exit(f"{libraries} is not the bin folder of a llama.cpp build: there is no {cmake_cache}")
    home = re.search(r"CMAKE_HOME_DIRECTORY:INTERNAL=(.+)", cmake_cache.read_text())
    assert home, cmake_cache
    return LlamaCpp(Path(home[1]), libraries.resolve())


def _fetch() -> Path:
    folder = cache() / "source"
    folder.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    if not any(folder.glob("llama_cpp_python-*.tar.gz")):
        # pip asks the package for its metadata after the download, which may fail; the archive is there all the same.
        subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=False)
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"), None)
    if archive is None:
        sys.exit(f"pip could not fetch the source of {PACKAGE}; give the bin folder of a llama.cpp build with --llama-bin")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"


def _build(source: Path, build: Path) -> None:
    print(f"building llama.cpp in {build}: once, about ten minutes on two cores", file=sys.stderr)
    options = ("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF", "LLAMA_BUILD_TESTS=OFF")
    configure = ["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *(f"-D{option}" for option in options)]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", str(build), "--target", *TARGETS], check=True, stdout=sys.stderr)


def build_driver(llama: LlamaCpp) -> Path:
    """Compiles the driver against that build, unless an up-to-date one is in the cache."""
    driver = cache() / f"llama_driver-{llama.digest}"
    newest = max(DRIVER.stat().st_mtime, (llama.libraries / "libllama.so").stat().st_mtime)
    if driver.exists() and driver.stat().st_mtime > newest:
        return driver
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        sys.exit("no C++ compiler found (c++, g++ or clang++)")
    includes = [f"-I{llama.source / folder}" for folder in ("include", "ggml/include")]
    libraries = [f"-L{llama.libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{llama.libraries}"]
    subprocess.run([compiler, "-std=c++17", "-O2", *includes, str(DRIVER), "-o", str(driver), *libraries], check=True)
    return driver


class Peer:
    """A running driver with one model. Use as a context manager."""

    def __init__(self, llama: LlamaCpp, model: Path, threads: int, context: int) -> None:
        command = [str(build_driver(llama)), str(model), str(threads), str(context)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._expect("ready")

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def prompt(self, ids: Sequence[int], *, flash: bool) -> float:
        """Seconds to process the ids as one prompt."""
        return self._run(flash, "prompt", ids)

    def generate(self, ids: Sequence[int], *, flash: bool) -> float:
        """Seconds to process the ids one at a time."""
        return self._run(flash, "generate", ids)

    def logits(self, ids: Sequence[int], into: Path, *, flash: bool) -> None:
        """Writes float32 [len(ids), vocab]."""
        self._run(flash, f"logits {into}", ids)

    def _run(self, flash: bool, command: str, ids: Sequence[int]) -> float:
        assert self._process.stdin
        self._process.stdin.write(f"{int(flash)} {command} {' '.join(map(str, ids))}\n")
        self._process.stdin.flush()
        return float(self._expect("ok").split()[1])

    def _expect(self, word: str) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.startswith(word):
            raise RuntimeError(f"llama.cpp driver: expected {word!r}, got {line!r}; exit code {self._process.poll()}")
        return line
