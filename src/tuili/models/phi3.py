"""Phi-3 and Phi-4: a llama that checkpoints store with q, k, v in one tensor and gate, up in another; longrope for long contexts.

Source: Phi-3 technical report (arXiv:2404.14219). The program has them apart, as every other model does; rows are split at load.
"""

from dataclasses import replace
from typing import Any

from tuili.models.blocks import attention_block, decoder, gated_mlp
from tuili.models.names import Names, Stored, gguf_names
from tuili.models.spec import Config, ModelSpec, same_window
from tuili.program.builder import Builder
from tuili.program.program import Value

NAMES = ("phi3",)


def spec(cfg: Config, max_model_len: int | None = None) -> ModelSpec:
    return ModelSpec.decoder(cfg, max_model_len, windows=same_window(cfg))


def weights(s: ModelSpec) -> Names:
    q, k, inner = s.q_dim, s.q_dim + s.kv_dim, s.intermediate_size
    fused = {
        "q_proj": ("attn_qkv", (0, q)),
        "k_proj": ("attn_qkv", (q, k)),
        "v_proj": ("attn_qkv", (k, k + s.kv_dim)),
        "gate_proj": ("ffn_up", (0, inner)),
        "up_proj": ("ffn_up", (inner, 2 * inner)),
    }
    names: dict[str, Stored] = {}
    for name, stored in gguf_names(s).items():
        source, rows = fused.get(name.split(".")[-2], (None, None))
        if source is not None:
            block, _, part = stored.name.rsplit(".", 2)
            stored = replace(stored, name=f"{block}.{source}.{part}", rows=rows)
        names[name] = stored
    return names


def build(b: Builder, s: ModelSpec) -> Value:
    return decoder(b, s, attention=attention_block, mlp=gated_mlp)


def tiny() -> dict[str, Any]:
    return {
        "model_type": "phi3",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 128,
        "sliding_window": 40,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 128,
            "short_factor": [1.0 + 0.02 * i for i in range(12)],
            "long_factor": [1.0 + 0.3 * i for i in range(12)],
        },
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
