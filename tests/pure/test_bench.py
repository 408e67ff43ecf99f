"""Benchmarks without the machine: what is asked for, the least time it takes, results written down and compared."""

import json
from pathlib import Path

import pytest

from tuili.bench.engine import Trial, TrialResult, check_trial, make_trials, step_work
from tuili.bench.kernels import DEFAULT_HEADS, Shape, attention_program, check_formats, matrix_program, parse_shape, step_input
from tuili.bench.probes import Limits
from tuili.bench.record import Setting, read_earlier, trial_record
from tuili.bench.roofline import Work, matrix_work
from tuili.cli.main import run
from tuili.config.machine import MachineFacts
from tuili.errors import ConfigError
from tuili.models.load import ModelDescription, build_program
from tuili.models.registry import architectures
from tuili.program.program import Program
from tuili.program.verify import verify

LIMITS = Limits(read_bandwidth=10e9, int8_peak=100e9, fp32_peak=20e9, core_latency=1e-7)
MACHINE = MachineFacts(num_cpus=2, num_cores=2, cpu_quota=None, available_memory=2**34, total_memory=2**34, memory_limit=None)
SETTING = Setting(2, "avx2", MACHINE, "toy:1b", "ab" * 32)


def test_the_longer_of_reading_and_computing_counts() -> None:
    assert Work(10e9, 50e9).bound(LIMITS) == (1.0, "memory")
    assert Work(1e9, 50e9).bound(LIMITS) == (0.5, "int8")
    assert Work(1e9, 50e9, 20e9).bound(LIMITS) == (1.5, "fp32")
    assert Work(1, 2, 3) + Work(10, 20, 30) == Work(11, 22, 33)


def test_float_formats_are_multiplied_as_floats() -> None:
    assert matrix_work("Q4_K", 100, 7) == Work(100, 14, 0)
    for name in ("F32", "F16", "BF16"):
        assert matrix_work(name, 100, 7) == Work(100, 0, 14)


def test_trials_are_named_as_llama_bench_names_them() -> None:
    names = list(map(str, make_trials((512, 0), (128,), (0, 2048), (1, 16))))
    assert names == [
        *("pp512", "pp512 @ d2048", "tg128", "tg128 b16"),
        *("tg128 @ d2048", "tg128 @ d2048 b16"),
    ]
    with pytest.raises(ConfigError, match="nothing to measure"):
        make_trials((0,), (0,), (0,), (1,))


def test_sequences_are_given_room_for_what_they_generate_while_others_read() -> None:
    assert Trial("pp", 512).sequence_tokens(512) == 513
    assert Trial("tg", 128, depth=100).sequence_tokens(512) == 230
    # 16 prompts of 129 tokens through steps of 512, of which up to 15 go to those that generate already
    assert Trial("tg", 64, depth=128, batch=16).sequence_tokens(512) == 128 + 2 + 64 + 5 + 16


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (Trial("pp", 512), "needs a context of 513 tokens; the model has 500"),
        (Trial("tg", 400, depth=100), "tg400 @ d100 needs a context of 502 tokens"),
        (Trial("pp", 64, depth=100), "multiple of 64"),
        (Trial("tg", 4, batch=65), "needs 65 tokens a step; a step computes 64"),
    ],
)
def test_what_cannot_be_measured_is_said(trial: Trial, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_trial(trial, 500, 64)


def description(architecture: str) -> ModelDescription:
    """The ``tiny()`` model with Q8_0 matrices."""
    arch = architectures()[architecture]
    spec = arch.spec(arch.tiny())
    program = build_program(arch, spec)
    formats = {name: "F32" if len(decl.shape) == 1 else "Q8_0" for name, decl in program.weights.items()}
    return ModelDescription(architecture, spec, program, formats, {})


def products(program: Program, symbol: str) -> int:
    """Multiplications of one token ("T"), or of one output row ("R"), with matrices."""
    instrs = [i for i in program.instrs if i.op in ("linear", "gate_up_act") and i.inputs[0].rows.symbol == symbol]
    shapes = [program.weights[name].shape for i in instrs for name in i.weights]
    return sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)


def test_the_work_of_a_step() -> None:
    model = description("llama")
    heads, width = model.spec.num_heads, model.spec.head_dim
    layers, kv_heads = model.spec.num_layers, model.spec.num_kv_heads
    one = step_work(model, 1, 1, [(1, 10)])
    per_token, per_output = products(model.program, "T"), products(model.program, "R")
    assert one.int8_operations == 2 * (per_token + per_output)
    assert one.fp32_operations == layers * 4 * 10 * heads * width
    kv_bytes = layers * 10 * 2 * kv_heads * width * 2
    assert one.num_bytes == (per_token + per_output) * 34 / 32 + kv_bytes
    four = step_work(model, 4, 1, [(4, 10)])  # 7, 8, 9 and 10 tokens are seen; there is one output
    assert four.num_bytes == one.num_bytes
    assert four.fp32_operations == layers * 4 * (7 + 8 + 9 + 10) * heads * width
    assert four.int8_operations == 2 * (4 * per_token + per_output)


def test_experts_that_nobody_chose_are_not_read() -> None:
    """One token reads top_k of the experts, a crowd all of them."""
    model = description("qwen3_moe")
    mixtures = [i for i in model.program.instrs if i.op == "moe_linear" and i.inputs[1].rows.symbol == "T"]
    num_experts, top_k = model.program.weights[mixtures[0].weights[0]].shape[0], mixtures[0].inputs[1].width
    size = sum(model.sizes()[name] for i in mixtures for name in i.weights)
    one, crowd = (step_work(model, tokens, 1, [(1, 1)]).num_bytes for tokens in (1, 10**6))
    assert crowd - one == pytest.approx(size * (1 - top_k / num_experts))


def test_the_work_of_a_trial() -> None:
    model = description("llama")
    whole, first, second = (Trial("pp", *tokens).work(model, 8) for tokens in ((16,), (8,), (8, 8)))
    assert whole == first + second
    generated = Trial("tg", 3, depth=4, batch=2).work(model, 8)
    assert generated == sum((step_work(model, 2, 2, [(1, end)] * 2) for end in (6, 7, 8)), Work())


def test_programs_of_single_ops_obey_the_rules() -> None:
    for op in ("linear", "gate_up_act"):
        program = matrix_program(op, Shape(64, 96), 3)
        verify(program)
        assert [i.op for i in program.instrs if i.op == op] == [op] * 3
    verify(attention_program(DEFAULT_HEADS[0], 3))
    step = step_input(2, 20, 1)
    assert step.positions.tolist() == [[18, 19]] and step.slot_mapping[0].tolist() == [18, 19]
    assert step.block_tables[0].tolist() == [[0, 1]]


def test_shapes_and_formats_are_parsed() -> None:
    assert parse_shape("896x4864") == Shape(896, 4864)
    for text in ("896", "0x5", "ax3", "3x"):
        with pytest.raises(ConfigError, match="KxN"):
            parse_shape(text)
    assert check_formats(["q4_k", "F16"]) == ["Q4_K", "F16"]
    with pytest.raises(ConfigError, match="no format Q9; known are F32"):
        check_formats(["Q9"])


def result(trial: Trial, *rates: float) -> TrialResult:
    return TrialResult(trial, rates, (0.5,) * len(rates), "memory", LIMITS)


def test_a_result_is_written_and_compared(tmp_path: Path) -> None:
    record = trial_record(result(Trial("tg", 128), 10.0, 14.0), SETTING)
    assert record["tokens_per_second"] == 12.0 and record["samples"] == [10.0, 14.0] and record["test"] == "tg128"
    assert record["probe"]["read_bytes_per_second"] == 10e9 and record["versions"]["tuili"]
    file = tmp_path / "earlier.json"
    file.write_text(json.dumps(record) + "\n\n")
    earlier = read_earlier(file, "ab" * 32)
    assert earlier.ratio("tg128", 18.0) == 1.5
    assert earlier.ratio("pp512", 18.0) is None
    assert earlier.differences(SETTING) == []
    assert earlier.differences(Setting(1, "avx2", MACHINE, "toy:1b", "ab" * 32)) == ["threads was 2, is 1"]
    with pytest.raises(ConfigError, match="another model: toy:1b, sha256 abababababab…; this one's is cdcdcdcdcdcd…"):
        read_earlier(file, "cd" * 32)


@pytest.mark.parametrize("text", ["[1]", "{}", '{"test": "tg1", "digest": "ab", "model": "x", "tokens_per_second": "5"}', "x"])
def test_earlier_results_that_are_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "earlier.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"line 1 is not a result of `tuili bench engine MODEL --json`"):
        read_earlier(file, "ab" * 32)
    file.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        read_earlier(file, "ab" * 32)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_earlier(tmp_path / "nothing.json", "ab" * 32)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["engine", "x.gguf", "-p", "5;6"], 2, "'5;6' is no list of numbers from 0 on"),
        (["engine", "x.gguf", "-b", "0"], 2, "from 1 on"),
        (["engine", "x.gguf", "-r", "0"], 2, "range"),
        (["engine", "x.gguf", "-p", "0", "-n", "0"], 1, "nothing to measure"),
        (["engine", "no-such-file.gguf"], 1, "there is no file no-such-file.gguf"),
        (["engine", "x.gguf", "--isa", "sse"], 1, "isa"),
        (["kernels", "--rows", "a"], 2, "no list of numbers"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_bad_questions(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and "Traceback" not in captured.err
