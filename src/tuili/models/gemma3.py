"""Gemma 3, text: five layers with a window to one without, each kind with its own rotary base; q and k heads are normalised.

Source: Gemma 3 report (arXiv:2503.19786). GGUF files hold the norm weights with Gemma's + 1 already added, so the canonical
weight is the final factor.
"""

from typing import Any

from tuili.models.blocks import attention_block, decoder, gated_mlp
from tuili.models.names import Names, sandwich_names
from tuili.models.rope import rope_spec
from tuili.models.spec import Config, ModelSpec, alternating_windows, need, same_window
from tuili.program.builder import Builder
from tuili.program.program import Value

NAMES = ("gemma3", "gemma3_text")

#: Layers of the 27B model, the one whose queries are scaled by hidden_size / num_heads; GGUF files do not record it.
_LAYERS_27B = 62
_LOCAL_BASE = 10000.0


def spec(cfg: Config, max_model_len: int | None = None) -> ModelSpec:
    hidden, head_dim = need(cfg, "hidden_size"), need(cfg, "head_dim")
    large = need(cfg, "num_hidden_layers") == _LAYERS_27B
    scalar = cfg.get("query_pre_attn_scalar") or (hidden // need(cfg, "num_attention_heads") if large else head_dim)
    parameters = cfg.get("rope_parameters") or {}
    full = parameters.get("full_attention", parameters)
    local = parameters.get("sliding_attention", {"rope_theta": cfg.get("rope_local_base_freq") or _LOCAL_BASE})
    pattern = cfg.get("sliding_window_pattern") or 6
    windows = alternating_windows(cfg, pattern) if cfg.get("sliding_window") else same_window(cfg)
    return ModelSpec.decoder(
        cfg,
        max_model_len,
        act="gelu_tanh",
        tied=bool(cfg.get("tie_word_embeddings", True)),
        qk_norm=True,
        post_norms=True,
        embed_scale=hidden**0.5,
        attn_scale=scalar**-0.5,
        attn_softcap=cfg.get("attn_logit_softcapping"),
        final_softcap=cfg.get("final_logit_softcapping"),
        windows=windows,
        rope=rope_spec({"rope_theta": 1e6, **cfg, "rope_parameters": full}, head_dim, max_model_len),
        rope_local=rope_spec({"rope_parameters": local}, head_dim),
    )


def weights(s: ModelSpec) -> Names:
    return sandwich_names(s)


def build(b: Builder, s: ModelSpec) -> Value:
    return decoder(b, s, attention=attention_block, mlp=gated_mlp)


def tiny() -> dict[str, Any]:
    return {
        "model_type": "gemma3_text",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 24,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "tie_word_embeddings": True,
    }
