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
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from material import kv_bytes_per_token
from servers import ServerCommand

PACKAGE = "llama-cpp-python==0.3.36"
DRIVER = Path(__file__).with_name("llama_driver.cpp")
PROGRAMS = ("llama-quantize", "llama-server")
OPTIONS = (
    *("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF"),
    *("LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_UI=OFF", "LLAMA_USE_PREBUILT_UI=OFF"),
)


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

    def program(self, name: str) -> Path:
        found = self.libraries / name
        if not found.exists():
            sys.exit(f"there is no {name} in {self.libraries}: build it there, or leave --llama-bin out")
        return found

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
        if not all((build / "bin" / program).exists() for program in PROGRAMS):
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
    name = archive.name.removesuffix(".tar.gz")
    if not (folder / name).exists():
        with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=folder) as partial:
            tar.extractall(partial, filter="data")
            (Path(partial) / name).rename(folder / name)
    return folder / name / "vendor" / "llama.cpp"


def _build(source: Path, build: Path) -> None:
    print(f"building llama.cpp in {build}: once, about ten minutes on two cores", file=sys.stderr)
    configure = ["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *(f"-D{option}" for option in OPTIONS)]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", str(build), "--target", *PROGRAMS], check=True, stdout=sys.stderr)


#: Names of formats, and what llama-quantize is asked for. The mixtures are those that consist of that format most
#: (Q2_K_S would want an importance matrix).
QUANTISED: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")},
    **{"Q2_K": ("Q2_K",), "Q3_K": ("Q3_K_S",), "Q4_K": ("Q4_K_S",), "Q5_K": ("Q5_K_S",), "Q6_K": ("Q6_K",)},
    **{"IQ4_NL": ("IQ4_NL",), "IQ4_XS": ("IQ4_XS",), "MXFP4": ("--tensor-type", r"blk\..*weight=mxfp4", "Q8_0")},
}
PLAIN = {name: (name,) for name in ("F16", "BF16", "F32")}


def quantised(llama: LlamaCpp, model: Path, name: str) -> Path:
    """``model`` requantised by llama-quantize, in the cache; ``name``: of QUANTISED or PLAIN."""
    *options, kind = {**QUANTISED, **PLAIN}[name]
    made = cache() / "requantised" / f"{model.stem}-{model.stat().st_size}-{name}.gguf"
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        partial = made.with_suffix(".partial")
        command = [str(llama.program("llama-quantize")), "--allow-requantize", *options, str(model), str(partial), kind]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"llama-quantize could not write {name}; the end of its output:\n{done.stdout[-2000:]}")
        partial.rename(made)
    return made


def server(llama: LlamaCpp, model: Path, port: int, *, threads: int, clients: int, context: int) -> ServerCommand:
    """One slot of ``context`` tokens a client, continuous batching. Its prompt cache in memory is off: no prompt comes twice, and
    it would count as its memory."""
    options = {
        "--model": model,
        "--host": "127.0.0.1",
        "--port": port,
        "--threads": threads,
        "--parallel": clients,
        "--ctx-size": clients * context,
        "--cache-ram": 0,
        "--flash-attn": "on",
    }
    command = [str(llama.program("llama-server")), "--cont-batching", "--no-kv-unified", "--no-ui"]
    command += [str(part) for pair in options.items() for part in pair]
    return ServerCommand("llama-server", tuple(command), port, clients * context * kv_bytes_per_token(model))


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

    def run(self, ids: Sequence[int], prompt: int, *, flash: bool) -> tuple[float, float]:
        """Seconds for the first ``prompt`` ids as one prompt, and for the rest, one at a time."""
        first, rest = self._run(flash, f"run {prompt}", ids)
        return first, rest

    def batch(self, prompts: Sequence[Sequence[int]], steps: Sequence[Sequence[int]], *, flash: bool) -> tuple[float, float]:
        """Seconds for prompts of equal length, and for steps of one id for each of them."""
        ids = [token for part in (*prompts, *steps) for token in part]
        first, rest = self._run(flash, f"batch {len(prompts)} {len(prompts[0])}", ids)
        return first, rest

    def nll(self, ids: Sequence[int], first: int, *, flash: bool) -> float:
        """Minus the log-likelihood in nats of the ids after position ``first``, each given all before it, summed."""
        return self._run(flash, f"nll {first}", ids)[0]

    def logits(self, ids: Sequence[int], into: Path, *, flash: bool) -> None:
        """Writes float32 [len(ids), vocab]."""
        self._run(flash, f"logits {into}", ids)

    def _run(self, flash: bool, command: str, ids: Sequence[int]) -> list[float]:
        assert self._process.stdin
        self._process.stdin.write(f"{int(flash)} {command} {' '.join(map(str, ids))}\n")
        self._process.stdin.flush()
        return [float(number) for number in self._expect("ok").split()[1:]]

    def _expect(self, word: str) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.startswith(word):
            raise RuntimeError(f"llama.cpp driver: expected {word!r}, got {line!r}; exit code {self._process.poll()}")
        return line
