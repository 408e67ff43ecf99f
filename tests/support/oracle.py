"""Hugging Face transformers on torch, float32, as the oracle: small random models, their weights under canonical names, and
the same model as a GGUF file written the way llama.cpp's converter writes it.

The GGUF side uses the ``gguf`` package's own name map and writer and repeats the converter's few transforms, so that our name
tables are checked against something that is not ours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers

import torch
from tuili.backends.base import Backend
from tuili.models.load import build_program
from tuili.models.registry import architecture
from tuili.quant.registry import format_of
from tuili.weights.source import Weight

#: model_type of a configuration -> the gguf package's architecture.
GGUF_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}


@dataclass
class Oracle:
    """A random transformers model of a configuration. ``views``: canonical name -> the part of its parameters that is the weight;
    ``offset``: what the model adds to it in use (Gemma's norms: 1)."""

    config: dict[str, Any]
    model: torch.nn.Module
    views: dict[str, torch.Tensor]
    offset: Callable[[str], float]

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([list(tokens)])).logits[0].numpy()

    def prompt(self, count: int, seed: int) -> list[int]:
        """Random tokens. For experts: the first prompt with a clear-cut routing, since rounding decides between equal ones."""
        while True:
            tokens = np.random.default_rng(seed).integers(0, self.config["vocab_size"], count).tolist()
            if self._routing_margin(tokens) > 2e-3:
                return tokens
            seed += 1000

    def _routing_margin(self, tokens: Sequence[int]) -> float:
        if "num_experts" not in self.config:
            return float("inf")
        with torch.no_grad():
            layers = self.model(input_ids=torch.tensor([list(tokens)]), output_router_logits=True).router_logits
        best = torch.stack(layers).sort(dim=-1, descending=True).values
        top_k = self.config["num_experts_per_tok"]
        return float((best[..., top_k - 1] - best[..., top_k]).min())

    def weights(self, format_for: Callable[[str, tuple[int, ...]], str] = lambda name, shape: "F32") -> dict[str, Weight]:
        """The weights in the formats wanted; the model's parameters are set to the decoded numbers, so that both sides agree."""
        result: dict[str, Weight] = {}
        for name, view in self.views.items():
            values = view.numpy() + np.float32(self.offset(name))
            fmt = "F32" if values.ndim == 1 else format_for(name, values.shape)
            data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[fmt]) if fmt != "F32" else values
            weight = Weight(fmt, values.shape, {"data": np.ascontiguousarray(data).view(np.uint8)})
            self.set(name, weight)
            result[name] = weight
        return result

    def set(self, name: str, weight: Weight) -> None:
        decoded = format_of(weight.format).decode(weight.data).reshape(weight.shape)
        with torch.no_grad():
            self.views[name].copy_(torch.from_numpy(decoded - np.float32(self.offset(name))))


def make_oracle(config: Mapping[str, Any], seed: int = 0) -> Oracle:
    """A model with random weights large enough for every part to matter."""
    torch.manual_seed(seed)
    settings = dict(config)
    hf = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = transformers.AutoModelForCausalLM.from_config(hf, attn_implementation="eager", dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.dim() == 1:
                centre = 1.0 if name.endswith("norm.weight") and "gemma" not in config["model_type"] else 0.0
                parameter.copy_(centre + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[-1] ** 0.5)
    gemma = config["model_type"].startswith("gemma")
    views = _views(model, config)
    return Oracle(dict(config), model, views, lambda name: 1.0 if gemma and name.endswith("norm.weight") else 0.0)


def _views(model: torch.nn.Module, config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    spec = architecture(config["model_type"]).spec(config)
    views: dict[str, torch.Tensor] = {}
    for name, parameter in model.state_dict().items():
        data = parameter.detach()
        if name == "lm_head.weight" and spec.tied:
            continue
        if name.endswith("qkv_proj.weight"):
            parts = data.split([spec.q_dim, spec.kv_dim, spec.kv_dim])
            views |= {name.replace("qkv_proj", f"{which}_proj"): part for which, part in zip("qkv", parts, strict=True)}
        elif name.endswith("experts.gate_up_proj"):
            gate, up = data.split(data.shape[1] // 2, dim=1)
            views |= {name.replace("gate_up_proj", "gate_proj.weight"): gate, name.replace("gate_up_proj", "up_proj.weight"): up}
        elif name.endswith("gate_up_proj.weight"):
            gate, up = data.split(data.shape[0] // 2)
            views |= {name.replace("gate_up_proj", "gate_proj"): gate, name.replace("gate_up_proj", "up_proj"): up}
        elif name.endswith("experts.down_proj"):
            views[name + ".weight"] = data
        else:
            views[name] = data
    return views


def executable(
    oracle: Oracle, backend: Backend, limits: Any, weights: Mapping[str, Weight], max_model_len: int | None = None
) -> Any:
    """The oracle's model on one of our backends, straight from canonical weights; ``limits``: a function of the program."""
    arch = architecture(oracle.config["model_type"])
    program = build_program(arch, arch.spec(oracle.config, max_model_len))
    made = limits(program)
    return backend.load(program, weights, made), program, made


def write_gguf(oracle: Oracle, path: Path, quantise: Callable[[str, tuple[int, ...]], str] = lambda name, shape: "F32") -> None:
    """The oracle's model as llama.cpp's converter would write it; parameters are set to the decoded numbers."""
    config, kind = oracle.config, oracle.config["model_type"]
    spec = architecture(kind).spec(config)
    arch = GGUF_ARCHITECTURES[kind]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _write_metadata(writer, config, spec)
    names = gguf.get_tensor_name_map(arch, spec.num_layers)
    for name, tensor in oracle.model.state_dict().items():
        if name == "lm_head.weight" and spec.tied:
            continue
        for hf_name, part in _converter_parts(name, tensor.detach()):
            values = part.numpy().astype(np.float32) + np.float32(oracle.offset(name))
            fmt = "F32" if values.ndim == 1 else quantise(name, values.shape)
            if fmt != "F32":
                stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[fmt])
                part.copy_(torch.from_numpy(gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[fmt])))
                values = stored
            heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads}.get(hf_name.split(".")[-2])
            if kind == "llama" and heads:
                values = _permute(values, heads)
            target = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
            assert target, hf_name
            writer.add_tensor(target, values, raw_dtype=None if fmt == "F32" else gguf.GGMLQuantizationType[fmt])
    for name, values in _rope_tensors(config).items():
        writer.add_tensor(name, np.array(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _permute(values: np.ndarray, heads: int) -> np.ndarray:
    """LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _converter_parts(name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """What the converter splits: the experts' fused gate and up."""
    if name.endswith("experts.gate_up_proj"):
        half = tensor.shape[1] // 2
        base = name.removesuffix("gate_up_proj")
        return [(f"{base}gate_proj.weight", tensor[:, :half]), (f"{base}up_proj.weight", tensor[:, half:])]
    return [(name + ".weight" if name.endswith("experts.down_proj") else name, tensor)]


def _write_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any], spec: Any) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(spec.rope.dim)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(spec.rope.magnitude)


def _rope_tensors(config: Mapping[str, Any]) -> dict[str, list[float]]:
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "longrope":
        return {"rope_factors_long.weight": rope["long_factor"], "rope_factors_short.weight": rope["short_factor"]}
    if rope.get("rope_type") == "llama3":
        return {"rope_freqs.weight": _llama3_factors(config, rope)}
    return {}


def _llama3_factors(config: Mapping[str, Any], rope: Mapping[str, Any]) -> list[float]:
    """As the converter computes them for its rope_freqs tensor."""
    dim = config["hidden_size"] // config["num_attention_heads"]
    original = rope["original_max_position_embeddings"]
    long_wave, short_wave = original / rope["low_freq_factor"], original / rope["high_freq_factor"]
    factors: list[float] = []
    for frequency in 1.0 / rope["rope_theta"] ** (np.arange(0, dim, 2) / dim):
        wave = 2 * np.pi / frequency
        if wave < short_wave:
            factors.append(1.0)
        elif wave > long_wave:
            factors.append(rope["factor"])
        else:
            smooth = (original / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return factors
