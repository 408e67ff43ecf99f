"""Tensor parallelism without a GPU: all ranks in lockstep on the reference equal the whole model."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from support.compare import nmse
from support.steps import Sequences, limits_for
from tuili.backends.base import StepInput
from tuili.backends.reference.executor import ReferenceBackend, ReferenceExecutable, run_lockstep
from tuili.errors import BackendError, ConfigError
from tuili.models.load import build_program, shard_weights
from tuili.models.registry import architectures
from tuili.program.builder import Builder
from tuili.program.passes.fuse import fuse
from tuili.program.passes.plan import plan
from tuili.program.passes.shard import shard
from tuili.program.program import Program
from tuili.program.verify import verify
from tuili.weights.cut import cut
from tuili.weights.dummy import dummy_weights
from tuili.weights.source import Weight

NAMES = sorted(architectures())


def model(name: str, fmt: str = "F32", **changes: Any) -> tuple[Program, dict[str, Weight]]:
    arch = architectures()[name]
    program = build_program(arch, arch.spec(arch.tiny() | changes))
    return program, dummy_weights({n: d.shape for n, d in program.weights.items()}, 7, lambda n, shape: fmt)


class Ranks:
    """Executables of all ranks behind one ``run``; every rank has to give the same output."""

    def __init__(self, program: Program, weights: dict[str, Weight], world: int) -> None:
        self.ranks: list[ReferenceExecutable] = []
        for rank in range(world):
            sharded = shard(program, rank, world)
            verify(sharded.program)
            plan(sharded.program)
            limits = limits_for(sharded.program, max_model_len=64, max_num_seqs=2)
            self.ranks.append(ReferenceBackend().load(sharded.program, shard_weights(sharded, weights), limits))

    def run(self, step: StepInput) -> np.ndarray:
        outputs = run_lockstep(self.ranks, step)
        for output in outputs[1:]:
            np.testing.assert_array_equal(output, outputs[0])
        return outputs[0]


def compare(program: Program, weights: dict[str, Weight], world: int) -> Ranks:
    limits = limits_for(program, max_model_len=64, max_num_seqs=2)
    ranks = Ranks(program, weights, world)
    whole = Sequences(ReferenceBackend().load(program, weights, limits), program, limits)
    parts = Sequences(ranks, program, limits)  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 320, 37).tolist(), rng.integers(0, 320, 9).tolist()
    for chunks in ({0: first[:30]}, {0: first[30:], 1: second[:4]}, {0: [1], 1: second[4:]}):
        expected, got = whole.feed(chunks), parts.feed(chunks)
        assert got.shape == expected.shape
        assert nmse(expected, got) < 1e-5  # sums in another order, then rounded to f16 on the way through the cache
    return ranks


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_equal_the_whole(name: str) -> None:
    compare(*model(name), world=2)


def test_quantised_weights_are_cut_between_blocks() -> None:
    program, weights = model("llama", "Q4_0")
    ranks = compare(program, weights, world=2)
    shapes = {name: decl.shape for name, decl in ranks.ranks[1].program.weights.items()}
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (64, 32)
    assert shapes["model.layers.0.mlp.gate_proj.weight"] == (64, 64)
    assert shapes["lm_head.weight"] == (160, 64)


def test_fewer_kv_heads_than_ranks_are_repeated() -> None:
    program, weights = model("llama")
    ranks = compare(program, weights, world=4)
    assert [rank.program.states[0].num_kv_heads for rank in ranks.ranks] == [1] * 4
    keys = [shard(program, rank, 4).cuts["model.layers.0.self_attn.k_proj.weight"] for rank in range(4)]
    assert [(key.start, key.stop) for key in keys] == [(0, 16), (0, 16), (16, 32), (16, 32)]


def test_biases_are_divided_or_added_once() -> None:
    program, weights = model("llama", attention_bias=True, mlp_bias=True)
    assert any("o_proj.bias" in name for name in program.weights)
    compare(program, weights, world=2)


def test_experts_are_divided_inside_each_expert_and_summed_once_a_token() -> None:
    program, weights = model("qwen3_moe")
    ranks = compare(program, weights, world=2)
    local = ranks.ranks[0].program
    assert local.weights["model.layers.0.mlp.experts.down_proj.weight"].shape == (8, 64, 32)
    assert [i.op for i in local.instrs].count("all_reduce") == 2 * 2
    assert [i.op for i in local.instrs].count("all_gather") == 1


def test_tied_embeddings_are_whole_for_look_up_and_divided_for_logits() -> None:
    program, _ = model("qwen2")
    local = shard(program, 1, 2).program
    assert local.weights["model.embed_tokens.weight"].shape == (320, 96)
    assert local.weights["model.embed_tokens.weight[160:320]"].shape == (160, 96)


def test_sharding_before_or_after_fusion_is_the_same() -> None:
    arch = architectures()["llama"]
    spec = arch.spec(arch.tiny())
    builder = Builder(spec.architecture)
    plain = builder.finish(arch.build(builder, spec))
    before = fuse(shard(plain, 0, 2).program)
    after = shard(fuse(plain), 0, 2).program
    assert [i.op for i in before.instrs].count("all_reduce") == [i.op for i in after.instrs].count("all_reduce") == 4
    assert before.weights == after.weights


@pytest.mark.parametrize(
    ("changes", "world", "message"),
    [
        ({}, 3, "4 heads cannot be divided among 3 ranks"),
        ({"intermediate_size": 97}, 2, "97 columns cannot be divided among 2 ranks"),
        ({"vocab_size": 321}, 2, "321 columns cannot be divided among 2 ranks"),
    ],
)
def test_what_does_not_divide_is_refused_by_number(changes: dict[str, Any], world: int, message: str) -> None:
    arch = architectures()["llama"]
    program = build_program(arch, arch.spec(arch.tiny() | changes))
    with pytest.raises(ConfigError, match=message):
        shard(program, 0, world)


def test_a_cut_through_a_quant_block_is_refused() -> None:
    weight = dummy_weights({"down": (4, 256)}, 0, lambda n, shape: "Q4_K")["down"]
    with pytest.raises(ConfigError, match="down: column 128 lies inside a block of 256 Q4_K elements"):
        cut(weight, 1, 128, 256, "down")
    assert cut(weight, 0, 1, 3).shape == (2, 256)


def test_a_rank_alone_does_not_run() -> None:
    program, weights = model("llama")
    ranks = Ranks(program, weights, 2)
    run = Sequences(ranks.ranks[0], program, limits_for(program, max_model_len=64, max_num_seqs=2))
    with pytest.raises(BackendError, match="rank 0 of 2"):
        run.feed({0: [1, 2]})
    with pytest.raises(ConfigError, match="rank 2 is not one of 2"):
        shard(program, 2, 2)


def test_a_program_without_marks_is_refused_not_broken() -> None:
    program, _ = model("llama")
    unmarked = dataclasses.replace(
        program,
        instrs=tuple(
            dataclasses.replace(i, attrs={**i.attrs, "split": None}) if i.attrs.get("split") == "column" else i
            for i in program.instrs
        ),
    )
    with pytest.raises(ConfigError, match="attention needs q, k and v from linears with split 'column'"):
        shard(unmarked, 0, 2)
