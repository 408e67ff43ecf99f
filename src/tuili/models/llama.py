"""Llama and its kin: Llama 2 and 3, Mistral, SmolLM. GGUF files call all of them ``llama``.

Source: Llama 2 (arXiv:2307.09288), Mistral 7B (arXiv:2310.06825).
"""

from typing import Any

from tuili.errors import NotSupported
from tuili.models.blocks import attention_block, decoder, gated_mlp
from tuili.models.names import Names, gguf_names, paired_qk
from tuili.models.spec import Config, ModelSpec, same_window
from tuili.program.builder import Builder
from tuili.program.program import Value

NAMES = ("llama", "mistral")


def spec(cfg: Config, max_model_len: int | None = None) -> ModelSpec:
    if cfg.get("num_experts"):
        raise NotSupported(f"a llama with {cfg['num_experts']} experts (Mixtral): not supported yet; qwen3moe is")
    bias = bool(cfg.get("attention_bias", False))
    out_bias = bool(cfg.get("attention_out_bias", bias))
    mlp_bias = bool(cfg.get("mlp_bias", False))
    return ModelSpec.decoder(cfg, max_model_len, qkv_bias=bias, out_bias=out_bias, mlp_bias=mlp_bias, windows=same_window(cfg))


def weights(s: ModelSpec) -> Names:
    return paired_qk(s, gguf_names(s))


def build(b: Builder, s: ModelSpec) -> Value:
    return decoder(b, s, attention=attention_block, mlp=gated_mlp)


def tiny() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        "tie_word_embeddings": False,
    }
