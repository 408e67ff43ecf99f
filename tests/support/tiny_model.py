"""A whole model file of 100 kB: a llama of two layers, random weights, a byte tokenizer. It talks nonsense, by all rules."""

from pathlib import Path

from support.fake_model import CHAT_TEMPLATE, tokenizer_metadata
from support.gguf_file import tensor, write_gguf
from tuili.weights.dummy import dummy_weights

HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD = 64, 2, 4, 2, 128


def write_tiny_model(
    path: Path, *, context: int = 256, architecture: str = "llama", chat_template: str | None = CHAT_TEMPLATE
) -> Path:
    """Write it to ``path``. Norms are F32, matrices Q8_0; the output matrix is the embedding."""
    tokenizer = tokenizer_metadata(chat_template)
    tokens = tokenizer["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    kv_width = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv_width, HIDDEN),
            "attn_v": (kv_width, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (FEED_FORWARD, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN),
            "ffn_down": (HIDDEN, FEED_FORWARD),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    weights = dummy_weights(shapes, seed=1, format_for=lambda name, shape: "Q8_0")
    metadata = {
        **tokenizer,
        "general.architecture": architecture,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": FEED_FORWARD,
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.context_length": context,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
    }
    write_gguf(path, metadata, [tensor(name, weight) for name, weight in weights.items()])
    return path
