"""Gemma 2: norms before and after each block, soft caps on attention scores and logits, every other layer with a window.

Source: Gemma 2 report (arXiv:2408.00118). GGUF files hold the norm weights with Gemma's + 1 already added, so the canonical
weight is the final factor.
"""

from typing import Any

from tuili.models.blocks import attention_block, decoder, gated_mlp
from tuili.models.names import Names, sandwich_names
from tuili.models.spec import Config, ModelSpec, alternating_windows, need
from tuili.program.builder import Builder
from tuili.program.program import Value

NAMES = ("gemma2",)

#: Layers of the 27B model, the one whose queries are scaled by hidden_size / num_heads; GGUF files do not record it.
_LAYERS_27B = 46


def spec(cfg: Config, max_model_len: int | None = None) -> ModelSpec:
    hidden, head_dim = need(cfg, "hidden_size"), need(cfg, "head_dim")
    large = need(cfg, "num_hidden_layers") == _LAYERS_27B
    scalar = cfg.get("query_pre_attn_scalar") or (hidden // need(cfg, "num_attention_heads") if large else head_dim)
    return ModelSpec.decoder(
        {"sliding_window": 4096, **cfg},
        max_model_len,
        act="gelu_tanh",
        tied=True,
        post_norms=True,
        embed_scale=hidden**0.5,
        attn_scale=scalar**-0.5,
        attn_softcap=cfg.get("attn_logit_softcapping", 50.0),
        final_softcap=cfg.get("final_logit_softcapping", 30.0),
        windows=alternating_windows({"sliding_window": 4096, **cfg}, pattern=2),
    )


def weights(s: ModelSpec) -> Names:
    return sandwich_names(s)


def build(b: Builder, s: ModelSpec) -> Value:
    return decoder(b, s, attention=attention_block, mlp=gated_mlp)


def tiny() -> dict[str, Any]:
    return {
        "model_type": "gemma2",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 24,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
    }
