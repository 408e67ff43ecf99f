"""ModelSpec: the hyper-parameters of a model, normalised. Made from a Hugging Face style configuration, which a GGUF file's
metadata is turned into first (``gguf_config.py``). Anything that the code would silently get wrong is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuili.errors import ModelFileError, NotSupported
from tuili.models.rope import rope_spec
from tuili.program.program import RopeSpec

Config = Mapping[str, Any]

MAX_HEAD_DIM = 4096

ACTS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder. Widths are per token; ``windows`` holds one entry a layer: how many last positions it sees, None for all.

    ``rope_local`` replaces ``rope`` in layers with a window, where a family has two. ``attn_scale`` multiplies q·k.
    ``moe_*`` and ``num_experts`` are 0 for dense models.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float
    act: str
    rope: RopeSpec
    attn_scale: float
    tied: bool
    windows: tuple[int | None, ...]
    rope_local: RopeSpec | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    embed_scale: float | None = None
    attn_softcap: float | None = None
    final_softcap: float | None = None
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    moe_normalise: bool = False

    @property
    def q_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim

    def layer_rope(self, layer: int) -> RopeSpec:
        return self.rope_local if self.rope_local is not None and self.windows[layer] is not None else self.rope

    @classmethod
    def decoder(cls, cfg: Config, max_model_len: int | None = None, **overrides: Any) -> "ModelSpec":
        """From Hugging Face configuration keys; ``overrides`` are fields of the spec that a family knows better.

        ``max_model_len`` matters to longrope only: which of its two factor lists is right depends on the context wanted.
        Raises ModelFileError for a missing or impossible value, NotSupported for a known feature that is not implemented.
        """
        hidden, heads, layers = (need(cfg, key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
        kv_heads = cfg.get("num_key_value_heads") or heads
        if heads % kv_heads:
            raise ModelFileError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
        if cfg.get("head_dim") is None and hidden % heads:
            raise ModelFileError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and head_dim is absent")
        head_dim = cfg.get("head_dim") or hidden // heads
        if head_dim > MAX_HEAD_DIM:
            raise ModelFileError(f"head_dim is {head_dim}; no model has more than {MAX_HEAD_DIM}")
        act = cfg.get("hidden_activation") or cfg.get("hidden_act") or "silu"
        if act not in ACTS:
            raise NotSupported(f"activation not supported yet: {act}; supported: {', '.join(ACTS)}")
        fields: dict[str, Any] = {
            "architecture": cfg["model_type"],
            "vocab_size": need(cfg, "vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": need(cfg, "intermediate_size"),
            "num_layers": layers,
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": need(cfg, "max_position_embeddings"),
            "norm_eps": cfg.get("rms_norm_eps") or 1e-6,
            "act": ACTS[act],
            "attn_scale": head_dim**-0.5,
            "tied": bool(cfg.get("tie_word_embeddings", False)),
            "windows": (None,) * layers,
        }
        if "rope" not in overrides:
            fields["rope"] = rope_spec(cfg, head_dim, max_model_len)
        return cls(**(fields | overrides))


def alternating_windows(cfg: Config, pattern: int) -> tuple[int | None, ...]:
    """Windows a layer: ``layer_types`` where the configuration has them, else every ``pattern``-th layer sees everything."""
    window, layers = need(cfg, "sliding_window"), need(cfg, "num_hidden_layers")
    types = cfg.get("layer_types") or ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)]
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown or len(types) != layers:
        raise NotSupported(f"layer_types {sorted(set(types))} for {layers} layers; supported: full_attention, sliding_attention")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def need(cfg: Config, key: str) -> int:
    """A positive whole number of the configuration; raises ModelFileError when it is absent or something else."""
    value = cfg.get(key)
    if not isinstance(value, int) or value <= 0:
        raise ModelFileError(f"the model's configuration has {key} = {value!r}; it has to be a positive whole number")
    return value


def same_window(cfg: Config) -> tuple[int | None, ...]:
    """Windows of a model that has one in every layer, or in none."""
    return ((need(cfg, "sliding_window") if cfg.get("sliding_window") else None),) * need(cfg, "num_hidden_layers")
