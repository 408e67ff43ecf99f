"""Canonical weight names (Hugging Face's, with the experts of a layer stacked) and where GGUF files keep them.

A ``Stored`` says which tensor of the file a weight is in and how its rows have to be taken. Rows are moved as stored bytes, so
quantised rows stay quantised.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tuili.errors import ModelFileError
from tuili.models.spec import ModelSpec
from tuili.quant.registry import format_of
from tuili.weights.source import Weight


@dataclass(frozen=True, slots=True)
class Stored:
    """``name``: tensor in the file. ``rows``: [start, stop) of it, where several weights share one tensor. ``paired_heads``: of
    how many heads the rows are, stored with the two halves of each rotary pair adjacent, as llama.cpp's converter does for the
    llama architecture; canonical order is all first halves of a head, then all second halves."""

    name: str
    rows: tuple[int, int] | None = None
    paired_heads: int | None = None

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The canonical weight's shape, given the tensor's; raises ModelFileError when the rows are not there to take."""
        axis = max(0, len(shape) - 2)
        if self.rows is not None:
            start, stop = self.rows
            if stop > shape[axis]:
                raise ModelFileError(f"tensor {self.name} has {shape[axis]} rows; the model needs {stop}")
            shape = (*shape[:axis], stop - start, *shape[axis + 1 :])
        if self.paired_heads is not None and shape[0] % (2 * self.paired_heads):
            raise ModelFileError(f"tensor {self.name} has {shape[0]} rows, not a multiple of 2 × {self.paired_heads} heads")
        return shape

    def take(self, weight: Weight) -> Weight:
        """The canonical weight, given the tensor ``name`` of the file. A view of it where rows are consecutive, else a copy."""
        shape = self.shape(weight.shape)
        data = weight.data
        if len(shape) == 1:  # a vector's elements are its rows
            data = data.reshape(weight.shape[0], format_of(weight.format).row_bytes(1))
        if self.rows is not None:
            data = data[..., slice(*self.rows), :]
        if self.paired_heads is not None:
            data = data[np.arange(shape[0]).reshape(self.paired_heads, -1, 2).swapaxes(1, 2).reshape(-1)]
        return Weight(weight.format, shape, {"data": data.reshape(-1) if len(shape) == 1 else data})


Names = Mapping[str, Stored]

#: Canonical name within a layer -> GGUF name within a block.
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}


def gguf_names(s: ModelSpec, layer_names: Mapping[str, str] = _LAYER) -> dict[str, Stored]:
    """Every name a decoder may use, weights and biases; the loader looks up those that the program declares."""
    names = {"model.embed_tokens.weight": Stored("token_embd.weight"), "model.norm.weight": Stored("output_norm.weight")}
    names["lm_head.weight"] = Stored("output.weight")
    for layer in range(s.num_layers):
        for ours, theirs in layer_names.items():
            for part in ("weight", "bias"):
                names[f"model.layers.{layer}.{ours}.{part}"] = Stored(f"blk.{layer}.{theirs}.{part}")
    return names


def sandwich_names(s: ModelSpec) -> dict[str, Stored]:
    """Gemma's blocks: a norm before and a norm after both attention and MLP."""
    norms = {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    return gguf_names(s, _LAYER | norms)


def paired_qk(s: ModelSpec, names: Names) -> dict[str, Stored]:
    """The names, with q and k stored in rotary pairs."""
    heads = {"q_proj": s.num_heads, "k_proj": s.num_kv_heads}
    return {
        name: Stored(stored.name, stored.rows, heads.get(name.split(".")[-2]) if ".self_attn." in name else None)
        for name, stored in names.items()
    }
