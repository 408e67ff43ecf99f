"""``tuili bench``: speed of kernels and of models, beside what this machine can do at that moment."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from tuili.cli.console import note, size_text, style
from tuili.cli.models import fetch_if_absent, find
from tuili.cli.options import accept_licence_option, json_option, model_argument, quiet_option
from tuili.config.options import EngineOptions, IsaName
from tuili.config.sources import read_settings
from tuili.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from tuili.bench.engine import TrialResult
    from tuili.bench.kernels import KernelBench, KernelResult
    from tuili.bench.record import Earlier
    from tuili.library.resolve import ResolvedModel

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_REPEATS = 5
MACHINE_COLUMNS = (
    *(("isa", 8), ("threads", 7), ("read GB/s", 10), ("from 4 KiB pages", 17)),
    *(("int8 Gop/s", 11), ("fp32 Gop/s", 11), ("core to core ns", 16)),
)
ENGINE_COLUMNS = (
    *(("test", 20), ("tok/s", 10), ("±", 7), ("of limit", 9), ("limit", 7)),
    *(("read GB/s", 10), ("core to core ns", 16)),
)
KERNEL_COLUMNS = (
    *(("op", 12), ("format", 7), ("shape", 22), ("rows", 5), ("µs", 10)),
    *(("Gop/s", 8), ("GB/s", 7), ("of limit", 9), ("limit", 7), ("read GB/s", 10)),
)


@click.group("bench")
def command() -> None:
    """Measure speed on this machine, and how far it is from the machine's limits at that moment.

    Limits (how fast memory is read, how many operations the cores do) are measured before and after each figure, because a busy
    host changes them within seconds. A figure is compared with the least time that its bytes and its operations take at these.
    """


class Numbers(click.ParamType[tuple[int, ...]]):
    """``1,2,4``: whole numbers from ``low`` on."""

    name = "list"

    def __init__(self, low: int) -> None:
        self.low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) >= self.low for part in parts):
            self.fail(f"{value!r} is no list of numbers from {self.low} on, such as 1,2,4", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


def _numbers(*names: str, default: str, low: int = 1, what: str) -> Callable[[Function], Function]:
    return click.option(*names, type=Numbers(low), default=default, show_default=True, metavar="N,N,…", help=what)


threads_option = click.option("--threads", "-t", type=int, metavar="N", help="Default: the processors that are ours.")
isa_option = click.option("--isa", metavar="NAME", help="Instruction set: generic, avx2 or avx512. Default: the best here.")


@command.command("machine")
@threads_option
@isa_option
@json_option
def machine(as_json: bool, **flags: Any) -> None:
    """Measure what this machine gives at this moment: reading from memory, arithmetic, latency between cores.

    With one thread and with --threads, for --isa or every instruction set that is here. Bytes are read from 2 MiB pages, as
    weights are, and from 4 KiB pages; an addition and a multiplication are two operations.
    """
    from tuili.backends.cpu.native import ISA_NAMES, isa_level, usable_cpus
    from tuili.bench.probes import Prober

    options = _engine_options(flags)
    levels: Sequence[IsaName] = [options.isa] if options.isa else ISA_NAMES[: isa_level(None) + 1]
    _show_header(MACHINE_COLUMNS, as_json)
    for isa in levels:
        for threads in dict.fromkeys((1, options.threads or usable_cpus())):
            prober = Prober(threads, isa)
            limits, small_pages = prober.measure(), prober.small_page_read_bandwidth()
            if as_json:
                known = {"isa": isa, "threads": threads, "small_page_read_bytes_per_second": round(small_pages)}
                _show_line(known | limits.record())
                continue
            speeds = (limits.read_bandwidth, small_pages, limits.int8_peak, limits.fp32_peak)
            latency = f"{limits.core_latency * 1e9:.0f}" if limits.core_latency else "-"
            _show_row(MACHINE_COLUMNS, [isa, str(threads), *(f"{speed / 1e9:.1f}" for speed in speeds), latency])


@command.command("engine")
@model_argument()
@_numbers("-p", "--prompt", default="512", low=0, what="Prompts of so many tokens (pp); 0 for none.")
@_numbers("-n", "--generate", default="128", low=0, what="Generate so many tokens (tg); 0 for none.")
@_numbers("-d", "--depth", default="0", low=0, what="After so many tokens that are there already.")
@_numbers("-b", "--batch", default="1", what="Generate for so many sequences at once.")
@click.option("-r", "--repeat", type=click.IntRange(1, 1000), default=DEFAULT_REPEATS, show_default=True, metavar="N")
@threads_option
@isa_option
@click.option("--max-num-batched-tokens", type=int, metavar="N", help="Tokens computed in one step. Default: 512.")
@click.option("--compare", type=click.Path(path_type=Path), metavar="FILE", help="What --json printed earlier: adds the ratio.")
@json_option
@accept_licence_option
@quiet_option
def engine(
    model: str,
    prompt: tuple[int, ...],
    generate: tuple[int, ...],
    depth: tuple[int, ...],
    batch: tuple[int, ...],
    repeat: int,
    compare: Path | None,
    as_json: bool,
    accept_licence: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Measure MODEL as users of llama-bench know it: tokens a second of prompts and of generation.

    Token ids go through scheduler, kernels and sampler; text is left out. pp512 is a prompt of 512 tokens, "tg128 @ d2048 b16"
    are 128 tokens for each of 16 sequences that have 2048 already. --json prints one object a line.

    \b
    tuili bench engine smollm2
    tuili bench engine qwen2.5-coder:0.5b -p 512,2048 -n 128 -d 0,2048 --json >before.json
    tuili bench engine qwen2.5-coder:0.5b -p 512,2048 -n 128 -d 0,2048 --compare before.json
    """
    from tuili.bench.engine import EngineBench, make_trials
    from tuili.bench.record import Setting, read_earlier, trial_record
    from tuili.config.machine import read_machine

    trials = make_trials(prompt, generate, depth, batch)
    options = _engine_options(flags)
    found = fetch_if_absent(find(model, accept_licence=accept_licence), quiet=quiet)
    digest = _digest(found)
    earlier = read_earlier(compare, digest) if compare else None
    with EngineBench(found.path, trials, options) as bench:
        report = bench.loaded.report
        setting = Setting(bench.loaded.resolved.threads, report["isa"], read_machine(), found.served_name, digest)
        if not quiet:
            parameters = f"{bench.model.num_parameters / 1e6:.0f} M parameters"
            note(f"{found.served_name}: {size_text(found.path.stat().st_size)}, {parameters}")
            note(_setting_line(setting.threads, setting.isa))
            for difference in earlier.differences(setting) if earlier else ():
                note(f"compared with another setting: {difference}")
        columns = (*ENGINE_COLUMNS, ("ratio", 6)) if earlier else ENGINE_COLUMNS
        _show_header(columns, as_json)
        for result in bench.run(repeat):
            ratio = earlier.ratio(str(result.trial), result.rate) if earlier else None
            if as_json:
                _show_line(trial_record(result, setting) | ({"ratio": ratio and round(ratio, 4)} if earlier else {}))
            else:
                _show_row(columns, _engine_row(result, earlier, ratio))


@command.command("kernels")
@click.option("--ops", metavar="NAME,NAME,…", help="linear, gate_up_act, attention. Default: all.")
@click.option("--formats", metavar="NAME,NAME,…", help="Weight formats, such as Q4_K,Q6_K. Default: all.")
@click.option(
    "--shapes", multiple=True, metavar="KxN", help="K inputs, N outputs; may be given several times. Default: 1536x8960."
)
@_numbers("--rows", default="1,2,4,8,16,32,128,512", what="Rows (tokens) at once; attention has its own.")
@threads_option
@isa_option
@json_option
@quiet_option
def kernels(
    ops: str | None,
    formats: str | None,
    shapes: tuple[str, ...],
    rows: tuple[int, ...],
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Measure single ops on random weights that no cache holds, run as the executor runs a model.

    Gop/s count a multiplication and an addition as two; GB/s are bytes of weights as the model file has them, or of K and V.
    Inputs of integer kernels are quantised once for all. --json prints one object a line.

    \b
    tuili bench kernels
    tuili bench kernels --formats Q4_K,Q6_K --shapes 896x4864 --shapes 4864x896 --rows 1,16,512
    """
    from tuili.backends.cpu.executor import CpuBackend
    from tuili.bench.kernels import KernelBench
    from tuili.bench.probes import Prober
    from tuili.bench.record import Setting, kernel_record
    from tuili.config.machine import read_machine

    options = _engine_options(flags)
    backend = CpuBackend(options.isa, options.threads)
    passes = _kernel_passes(KernelBench(backend, Prober(backend.threads, options.isa)), ops, formats, shapes, rows)
    if not quiet:
        note(_setting_line(backend.threads, backend.isa))
    _show_header(KERNEL_COLUMNS, as_json)
    setting = Setting(backend.threads, backend.isa, read_machine())
    for result in passes:
        if as_json:
            _show_line(kernel_record(result, setting))
        else:
            _show_row(KERNEL_COLUMNS, _kernel_row(result))


def _kernel_passes(
    bench: "KernelBench", ops: str | None, formats: str | None, shapes: Sequence[str], rows: Sequence[int]
) -> Iterator["KernelResult"]:
    """Everything is checked before the first figure is measured."""
    from tuili.bench.kernels import CONTEXTS, DEFAULT_HEADS, DEFAULT_SHAPES, OPS, QUERIES, check_formats, parse_shape
    from tuili.quant.registry import FORMATS

    chosen = [name.strip() for name in ops.split(",")] if ops else list(OPS)
    unknown = [name for name in chosen if name not in OPS]
    if unknown:
        raise ConfigError(f"there is no op {', '.join(unknown)} to measure; known are {', '.join(OPS)}")
    names = check_formats([name.strip() for name in formats.split(",")]) if formats else list(FORMATS)
    parsed = [parse_shape(shape) for shape in shapes] or list(DEFAULT_SHAPES)
    matrices = [(op, name, shape) for op in chosen if op != "attention" for name in names for shape in parsed]
    problems = {one: problem for one in matrices if (problem := bench.problem(one[1], one[2]))}
    if problems and formats:  # of all formats, those that can are measured
        raise BackendError(f"{next(iter(problems.values()))}; inputs that are a multiple of 256 suit every format")

    def passes() -> Iterator["KernelResult"]:
        for op, name, shape in matrices:
            if (op, name, shape) not in problems:
                yield from bench.matrix(op, name, shape, rows)
        if "attention" in chosen:
            for heads in DEFAULT_HEADS:
                for context in CONTEXTS:
                    for queries in QUERIES:
                        yield bench.attention(heads, context, queries)

    return passes()


def _engine_options(flags: dict[str, Any]) -> EngineOptions:
    """Flags, environment, file. Only the native backend has limits to compare with."""
    settings = read_settings()
    isa: Any = settings.choice("isa", get_args(IsaName), flags["isa"])
    batched = flags.get("max_num_batched_tokens")
    return EngineOptions(
        backend="cpu",
        isa=isa,
        threads=settings.integer("threads", flags["threads"], high=1024),
        max_num_batched_tokens=settings.integer("max_num_batched_tokens", batched),
    )


def _digest(found: "ResolvedModel") -> str:
    """The sha256 of the model's file."""
    from tuili.library.store import sha256_of

    return found.manifest.files[0].sha256 if found.manifest else sha256_of(found.path)


def _setting_line(threads: int, isa: str) -> str:
    from tuili.config.machine import cpu_model

    return f"{cpu_model()}, {threads} threads, {isa}"


def _engine_row(result: "TrialResult", earlier: "Earlier | None", ratio: float | None) -> list[str]:
    row = [
        str(result.trial),
        f"{result.rate:.2f}",
        f"{result.deviation:.2f}",
        f"{result.part_of_limit:.0%}",
        result.bound,
        f"{result.limits.read_bandwidth / 1e9:.1f}",
        f"{result.limits.core_latency * 1e9:.0f}" if result.limits.core_latency else "-",
    ]
    return [*row, "-" if ratio is None else f"{ratio:.2f}"] if earlier else row


def _kernel_row(result: "KernelResult") -> list[str]:
    return [
        *(result.op, result.format, result.shape, str(result.rows)),
        f"{result.seconds * 1e6:.1f}",
        f"{result.operations_per_second / 1e9:.1f}",
        f"{result.bytes_per_second / 1e9:.1f}",
        f"{result.part_of_limit:.0%}",
        result.bound,
        f"{result.limits.read_bandwidth / 1e9:.1f}",
    ]


Columns = Sequence[tuple[str, int]]


def _show_header(columns: Columns, as_json: bool) -> None:
    if not as_json:
        click.echo(style(_aligned(columns, [name for name, _ in columns]), bold=True))


def _show_row(columns: Columns, cells: Sequence[str]) -> None:
    """Rows are shown as they come: a run takes minutes."""
    click.echo(_aligned(columns, cells))


def _aligned(columns: Columns, cells: Sequence[str]) -> str:
    """Names to the left, figures to the right."""
    left = ("isa", "op", "format", "shape", "test", "limit")
    padded = [
        cell.ljust(width) if name in left else cell.rjust(width) for (name, width), cell in zip(columns, cells, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _show_line(record: object) -> None:
    click.echo(json.dumps(record, ensure_ascii=False))
