"""Qwen2 and Qwen2.5, coder models included: a llama whose q, k and v have biases.

Source: Qwen2 technical report (arXiv:2407.10671).
"""

from typing import Any

from tuili.errors import NotSupported
from tuili.models.blocks import attention_block, decoder, gated_mlp
from tuili.models.names import Names, gguf_names
from tuili.models.spec import Config, ModelSpec
from tuili.program.builder import Builder
from tuili.program.program import Value

NAMES = ("qwen2",)


def spec(cfg: Config, max_model_len: int | None = None) -> ModelSpec:
    if cfg.get("use_sliding_window"):
        raise NotSupported("qwen2 with use_sliding_window: not supported yet; no released model sets it")
    return ModelSpec.decoder(cfg, max_model_len, qkv_bias=True)


def weights(s: ModelSpec) -> Names:
    return gguf_names(s)


def build(b: Builder, s: ModelSpec) -> Value:
    return decoder(b, s, attention=attention_block, mlp=gated_mlp)


def tiny() -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "vocab_size": 320,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        "tie_word_embeddings": True,
    }
