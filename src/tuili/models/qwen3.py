"""Qwen3: q and k heads are normalised instead of biased, and a head has its own width.

Source: Qwen3 technical report (arXiv:2505.09388).
"""

from typing import Any

from tuili.models.blocks import attention_block, decoder, gated_mlp
from tuili.models.names import Names, gguf_names
from tuili.models.spec import Config, ModelSpec
from tuili.program.builder import Builder
from tuili.program.program import Value

NAMES = ("qwen3",)


def spec(cfg: Config, max_model_len: int | None = None) -> ModelSpec:
    bias = bool(cfg.get("attention_bias", False))
    head_dim = cfg.get("head_dim") or 128
    return ModelSpec.decoder({**cfg, "head_dim": head_dim}, max_model_len, qk_norm=True, qkv_bias=bias, out_bias=bias)


def weights(s: ModelSpec) -> Names:
    return gguf_names(s)


def build(b: Builder, s: ModelSpec) -> Value:
    return decoder(b, s, attention=attention_block, mlp=gated_mlp)


def tiny() -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 2.0},
        "tie_word_embeddings": True,
    }
