"""From a file's metadata to a program: configurations, rotary variants, names, and every refusal."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.gguf_file import Typed, tensor, write_gguf
from support.steps import Sequences, limits_for
from tuili.backends.reference.executor import ReferenceBackend
from tuili.errors import ModelFileError, NotSupported, TuiliError
from tuili.models.gguf_config import gguf_config
from tuili.models.load import SourceWeights, bind, build_program, read_model
from tuili.models.names import Stored
from tuili.models.registry import architecture, architectures
from tuili.models.rope import rope_spec
from tuili.models.spec import ModelSpec, alternating_windows
from tuili.weights.dummy import dummy_weights
from tuili.weights.gguf import open_gguf
from tuili.weights.source import MetadataValue, Weight

NAMES = sorted(architectures())


class FakeSource:
    """Metadata and float32 tensors in memory."""

    def __init__(self, metadata: Mapping[str, MetadataValue], tensors: Mapping[str, np.ndarray]) -> None:
        self.metadata = metadata
        self._tensors = tensors

    def names(self) -> Iterable[str]:
        return self._tensors

    def tensor(self, name: str) -> Weight:
        values = self._tensors[name].astype(np.float32)
        return Weight("F32", values.shape, {"data": np.ascontiguousarray(values).view(np.uint8)})

    def release(self) -> None: ...

    def close(self) -> None: ...


LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 16,
}


def llama_tensors(vocab: int = 100) -> dict[str, np.ndarray]:
    """The tensors of LLAMA under the names that llama.cpp gives them; output.weight is absent: tied."""
    shapes = {"token_embd": (vocab, 64), "output_norm": (64,)}
    for layer in range(2):
        block = {"attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
        block |= {"ffn_norm": (64,), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    rng = np.random.default_rng(0)
    return {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) * 0.1 for name, shape in shapes.items()}


def llama_source(tensors: Mapping[str, np.ndarray] | None = None, **metadata: Any) -> FakeSource:
    changed = {k: v for k, v in (LLAMA | metadata).items() if v is not None}
    return FakeSource(changed, tensors if tensors is not None else llama_tensors())


def with_key(key: str, value: Any) -> FakeSource:
    return llama_source(**{key: value})


def test_tied_embeddings_are_stored_once_and_used_twice() -> None:
    """D-GGUF-2: no output.weight."""
    model = read_model(llama_source())
    assert model.spec.tied
    uses = [instr.op for instr in model.program.instrs if "model.embed_tokens.weight" in instr.weights]
    assert uses == ["embed", "linear"]
    assert model.num_parameters == sum(values.size for values in llama_tensors().values())
    untied = read_model(llama_source({**llama_tensors(), "output.weight": np.zeros((100, 64))}))
    assert not untied.spec.tied and "lm_head.weight" in untied.program.weights


def test_a_file_is_read_without_touching_its_weights() -> None:
    class Untouchable(FakeSource):
        def tensor(self, name: str) -> Weight:
            weight = super().tensor(name)
            data = weight.data.view()
            data.setflags(write=False)
            return dataclasses.replace(weight, parts={"data": np.broadcast_to(np.uint8(0), data.shape)})

    model = read_model(Untouchable(LLAMA, llama_tensors()))
    assert model.weight_bytes == 4 * model.num_parameters


@pytest.mark.parametrize(
    ("name", "close"), [("mystery", None), ("lama", "llama"), ("qwen3-moe", "qwen3moe"), ("gemma4", "gemma")]
)
def test_an_unknown_architecture_is_named_with_what_is_known(name: str, close: str | None) -> None:
    """D-GGUF-2: a file whose architecture is ``mystery``."""
    with pytest.raises(NotSupported, match=f"{name}; supported: .*llama.*qwen2") as caught:
        read_model(with_key("general.architecture", name))
    assert close is None or f"nearest: {close}" in str(caught.value)


def test_a_file_without_architecture_is_no_model() -> None:
    """D-GGUF-2: ``general.architecture`` absent."""
    with pytest.raises(ModelFileError, match=r"general\.architecture is None"):
        read_model(with_key("general.architecture", None))


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("llama.block_count", None, ModelFileError, "num_hidden_layers = None"),
        ("llama.block_count", 0, ModelFileError, "num_hidden_layers = 0"),
        ("llama.embedding_length", "64", ModelFileError, "llama.embedding_length is '64'"),
        ("llama.embedding_length", 2**40, ModelFileError, "embedding_length is 1099511627776; it has to be a number"),
        ("llama.attention.key_length", 2**30, ModelFileError, "head_dim is 1073741824"),
        ("llama.attention.layer_norm_rms_epsilon", "x", ModelFileError, "epsilon is 'x'"),
        ("llama.rope.dimension_count", 3, ModelFileError, "impossible llama model.*rotates 3 of 16"),
        ("llama.rope.freq_base", [1.0], ModelFileError, r"freq_base is \[1.0\]"),
        ("llama.attention.head_count_kv", 3, ModelFileError, "not a multiple of num_key_value_heads 3"),
        ("llama.attention.head_count", 6, ModelFileError, "hidden_size 64 is not a multiple of num_attention_heads 6"),
        ("llama.attention.head_count_kv", [2, 1], NotSupported, "head_count_kv differs between layers"),
        ("llama.attention.value_length", 32, NotSupported, "value heads of 32"),
        ("llama.expert_count", 8, NotSupported, "8 experts"),
        ("llama.rope.scaling.type", "dynamic", NotSupported, "rope scaling not supported yet: dynamic; supported: default"),
        ("llama.rope.scaling.attn_factor", 1.2, NotSupported, "attn_factor without"),
        ("llama.rope.scaling.yarn_log_multiplier", 0.1, NotSupported, "yarn_log_multiplier"),
        ("llama.rope.scaling.yarn_ext_factor", 0.5, NotSupported, "yarn_ext_factor"),
        ("llama.block_count", 3, ModelFileError, "block_count is 3, but the file has tensors of 2 blocks only"),
        ("llama.feed_forward_length", 128, ModelFileError, r"ffn_gate.weight gives \[96, 64\].* needs \[128, 64\]"),
    ],
)
def test_impossible_or_unsupported_metadata_is_refused(key: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_model(with_key(key, value))


def test_missing_tensors_are_named() -> None:
    tensors = {name: values for name, values in llama_tensors().items() if not name.startswith("blk.1.ffn")}
    with pytest.raises(ModelFileError, match=r"calls itself llama but lacks .*blk\.1\.ffn_"):
        read_model(llama_source(tensors))


def test_an_adapter_or_empty_file_is_no_model() -> None:
    with pytest.raises(ModelFileError, match=r"no token_embd\.weight"):
        read_model(llama_source({"blk.0.attn_q.weight": np.zeros((4, 4))}))


def test_metadata_becomes_a_configuration() -> None:
    cfg = gguf_config(llama_source(**{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}))
    assert cfg["model_type"] == "llama" and cfg["vocab_size"] == 100 and cfg["tie_word_embeddings"]
    assert cfg["rope_parameters"] == {"rope_type": "linear", "rope_theta": 10000.0, "partial_rotary_factor": 1.0, "factor": 4.0}
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_attn_factor": 1.5, "yarn_beta_slow": 2.0}
    cfg = gguf_config(llama_source(**{f"llama.rope.scaling.{key}": value for key, value in yarn.items()}))
    assert cfg["rope_parameters"]["attention_factor"] == 1.5 and cfg["rope_parameters"]["beta_slow"] == 2.0
    assert rope_spec(cfg, 16).magnitude == 1.5
    pattern = gguf_config(with_key("llama.attention.sliding_window_pattern", [True, False]))
    assert pattern["layer_types"] == ["sliding_attention", "full_attention"]
    assert gguf_config(with_key("llama.attention.sliding_window_pattern", 6))["sliding_window_pattern"] == 6
    partial = gguf_config(with_key("llama.rope.dimension_count", 12))
    assert partial["rope_parameters"]["partial_rotary_factor"] == 0.75


# Names and row orders


def stored_rows(count: int, width: int = 4) -> Weight:
    values = np.repeat(np.arange(count, dtype=np.float32)[:, None], width, axis=1)
    return Weight("F32", (count, width), {"data": values.view(np.uint8)})


def first_column(weight: Weight) -> list[float]:
    return weight.data.view(np.float32).reshape(weight.shape)[:, 0].tolist()


def test_rotary_pairs_are_taken_apart_by_whole_rows() -> None:
    """llama.cpp's converter writes row (head, pair i, half p) where canonical order is (head, half p, pair i)."""
    canonical = np.arange(16).reshape(2, 2, 4)  # heads, halves, pairs
    in_file = canonical.swapaxes(1, 2).reshape(-1)
    position = {row: place for place, row in enumerate(in_file)}
    taken = Stored("q", paired_heads=2).take(stored_rows(16))
    assert first_column(taken) == [position[row] for row in range(16)]
    vector = Weight("F32", (16,), {"data": np.arange(16, dtype=np.float32).view(np.uint8)})
    assert Stored("q.bias", paired_heads=2).take(vector).data.view(np.float32).tolist() == [position[row] for row in range(16)]


def test_a_part_of_a_fused_tensor_is_a_view_of_it() -> None:
    weight = stored_rows(10)
    part = Stored("qkv", rows=(2, 5)).take(weight)
    assert part.shape == (3, 4) and first_column(part) == [2, 3, 4]
    assert np.shares_memory(part.data, weight.data)
    experts = Weight("F32", (2, 6, 4), {"data": np.arange(48, dtype=np.float32).view(np.uint8).reshape(2, 6, 16)})
    half = Stored("gate_up", rows=(3, 6)).take(experts)
    assert half.shape == (2, 3, 4) and half.data.view(np.float32)[1, 0, 0] == 36


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(ModelFileError, match="has 10 rows; the model needs 12"):
        Stored("qkv", rows=(8, 12)).take(stored_rows(10))
    with pytest.raises(ModelFileError, match="10 rows, not a multiple of 2 × 4 heads"):
        Stored("q", paired_heads=4).take(stored_rows(10))


@pytest.mark.parametrize("name", NAMES)
def test_every_declared_weight_has_a_place_in_a_file(name: str) -> None:
    arch = architectures()[name]
    spec = arch.spec(arch.tiny())
    program, names = build_program(arch, spec), arch.weights(spec)
    places = [names[weight] for weight in program.weights]
    assert len({(place.name, place.rows) for place in places}) == len(places)


@pytest.mark.parametrize("name", NAMES)
def test_tiny_is_small_and_runs(name: str) -> None:
    arch = architectures()[name]
    spec = arch.spec(arch.tiny())
    program = build_program(arch, spec)
    assert sum(math.prod(decl.shape) for decl in program.weights.values()) < 500_000
    assert spec.num_heads > spec.num_kv_heads
    weights = dummy_weights({n: d.shape for n, d in program.weights.items()}, 0, lambda n, shape: "F16")
    limits = limits_for(program, max_model_len=64, max_num_seqs=2)
    run = Sequences(ReferenceBackend().load(program, weights, limits), program, limits)
    out = run.feed({0: [1, 2, 3], 1: [4]}, all_rows=False)
    assert out.shape == (2, spec.vocab_size) and np.isfinite(out).all() and out.std() > 0


def test_a_gguf_file_runs_end_to_end(tmp_path: Path) -> None:
    records = [tensor(name, values) for name, values in llama_tensors().items()]
    path = write_gguf(tmp_path / "tiny.gguf", LLAMA | {"llama.vocab_size": Typed(4, 100)}, records)
    source = open_gguf(path)
    model = read_model(source)
    limits = limits_for(model.program, max_model_len=64, max_num_seqs=1)
    run = Sequences(bind(model, source, ReferenceBackend(), limits), model.program, limits)
    weights = {name: SourceWeights(llama_source(), model.stored)[name] for name in model.program.weights}
    direct = Sequences(ReferenceBackend().load(model.program, weights, limits), model.program, limits)
    np.testing.assert_array_equal(run.feed({0: [5, 6, 7]}), direct.feed({0: [5, 6, 7]}))


def test_damaged_metadata_gives_a_model_or_our_own_error(tmp_path: Path) -> None:
    """D-GGUF-1: flipped bytes before the tensor data, through the whole way to a program."""
    whole = write_gguf(tmp_path / "whole.gguf", LLAMA, [tensor(name, values) for name, values in llama_tensors(8).items()])
    data = whole.read_bytes()
    head = len(data) - sum(values.nbytes for values in llama_tensors(8).values())
    rng = np.random.default_rng(11)
    refused = 0
    for position in rng.integers(0, head, 600):
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(rng.integers(8))
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        try:
            source = open_gguf(tmp_path / "damaged.gguf")
            read_model(source)
            source.close()
        except TuiliError:
            refused += 1
    assert 100 < refused < 600


# Rotary variants


def test_plain_linear_and_partial_frequencies() -> None:
    base = {"rope_theta": 100.0, "max_position_embeddings": 64}
    assert rope_spec(base, 4).inverse_frequencies == pytest.approx((1.0, 0.1))
    scaled = rope_spec(base | {"rope_scaling": {"type": "linear", "factor": 4.0}}, 4)
    assert scaled.inverse_frequencies == pytest.approx((0.25, 0.025))
    assert rope_spec(base | {"partial_rotary_factor": 0.5}, 8).dim == 4


def test_longrope_chooses_its_factors_by_the_context_asked_for() -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 4.0]}
    cfg = {"rope_theta": 100.0, "max_position_embeddings": 1024, "original_max_position_embeddings": 64, "rope_scaling": scaling}
    assert rope_spec(cfg, 4, max_model_len=64).inverse_frequencies == pytest.approx((1.0, 0.1))
    assert rope_spec(cfg, 4, max_model_len=65).inverse_frequencies == pytest.approx((0.5, 0.025))
    assert rope_spec(cfg, 4).inverse_frequencies == pytest.approx((0.5, 0.025))
    assert rope_spec(cfg, 4, 64).magnitude == pytest.approx(math.sqrt(1 + math.log(16) / math.log(64)))


@pytest.mark.parametrize(
    ("scaling", "error", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, NotSupported, "rope scaling not supported yet: dynamic"),
        ({"rope_type": "linear"}, ModelFileError, "rope scaling linear needs factor"),
        ({"rope_type": "llama3", "factor": 8.0}, ModelFileError, "llama3 needs low_freq_factor"),
        ({"rope_type": "yarn", "factor": 4.0}, ModelFileError, "yarn needs original_max_position_embeddings"),
        ({"rope_type": "factors", "factors": [1.0]}, ModelFileError, "1 rope factors for 2 frequencies"),
        ({"rope_type": "factors", "factors": [1.0, 0.0]}, ModelFileError, "not positive numbers"),
        ({"rope_type": "linear", "factor": 0.0}, ModelFileError, "factor = 0.0; it has to be a positive number"),
        ({"rope_type": "linear", "factor": 2.0, "rope_theta": 1.0}, ModelFileError, "rope_theta is 1.0"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}
            | {"original_max_position_embeddings": 64},
            ModelFileError,
            "high_freq_factor 4.0 at or below",
        ),
    ],
)
def test_incomplete_or_unknown_scaling_is_refused(scaling: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rope_spec({"rope_scaling": scaling, "max_position_embeddings": 64}, 4)


# Specs


def test_gemma_windows_scales_and_bases() -> None:
    arch = architecture("gemma3")
    cfg = {k: v for k, v in arch.tiny().items() if k != "query_pre_attn_scalar"}
    spec = arch.spec(cfg)
    assert spec.windows == (24, 24, 24, 24, 24, None, 24)
    assert spec.layer_rope(5) == spec.rope and spec.layer_rope(0) == spec.rope_local != spec.rope
    assert spec.attn_scale == cfg["head_dim"] ** -0.5
    large = arch.spec(cfg | {"num_hidden_layers": 62, "hidden_size": 96})
    assert large.attn_scale == (96 // 4) ** -0.5
    assert architecture("gemma2").spec(architecture("gemma2").tiny()).windows == (24, None, 24, None)


def test_layer_types_have_to_be_known_and_complete() -> None:
    cfg = {"sliding_window": 8, "num_hidden_layers": 2}
    assert alternating_windows(cfg | {"layer_types": ["full_attention", "sliding_attention"]}, 6) == (None, 8)
    for types in (["full_attention"], ["full_attention", "linear_attention"]):
        with pytest.raises(NotSupported, match="layer_types"):
            alternating_windows(cfg | {"layer_types": types}, 6)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama", {"hidden_act": "relu"}, "activation not supported yet: relu"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "dense layers"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "dense layers"),
    ],
)
def test_features_that_are_not_there_are_refused_by_name(name: str, change: dict[str, Any], message: str) -> None:
    arch = architectures()[name]
    with pytest.raises(NotSupported, match=message):
        arch.spec(arch.tiny() | change)


def test_mistral_has_a_window_in_every_layer() -> None:
    spec = architecture("mistral").spec(architecture("llama").tiny() | {"model_type": "mistral", "sliding_window": 32})
    assert spec.windows == (32, 32)
    assert isinstance(spec, ModelSpec)
