"""Qwen3 with experts: each token's MLP is a weighted sum of its top-k experts.

Source: Qwen3 technical report (arXiv:2505.09388). llama.cpp's converter does not record ``norm_topk_prob``; its own graph
normalises, as every released model asks, so a GGUF file without the key means true.
"""

from typing import Any

from tuili.errors import NotSupported
from tuili.models.blocks import attention_block, decoder, moe_mlp
from tuili.models.names import Names, gguf_names
from tuili.models.spec import Config, ModelSpec, need
from tuili.program.builder import Builder
from tuili.program.program import Value

NAMES = ("qwen3moe", "qwen3_moe")


def spec(cfg: Config, max_model_len: int | None = None) -> ModelSpec:
    if cfg.get("mlp_only_layers") or cfg.get("decoder_sparse_step", 1) != 1:
        raise NotSupported("qwen3moe with dense layers among the sparse ones: not supported yet")
    bias = bool(cfg.get("attention_bias", False))
    return ModelSpec.decoder(
        cfg,
        max_model_len,
        qk_norm=True,
        qkv_bias=bias,
        out_bias=bias,
        num_experts=need(cfg, "num_experts"),
        num_experts_per_token=need(cfg, "num_experts_per_tok"),
        moe_intermediate_size=need(cfg, "moe_intermediate_size"),
        moe_normalise=bool(cfg.get("norm_topk_prob", False)),
    )


def weights(s: ModelSpec) -> Names:
    return gguf_names(s)


def build(b: Builder, s: ModelSpec) -> Value:
    return decoder(b, s, attention=attention_block, mlp=moe_mlp)


def tiny() -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "tie_word_embeddings": False,
    }
