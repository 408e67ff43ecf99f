"""The decoder that most families share, and its parts. A family with something of its own passes its own part."""

from collections.abc import Callable

from tuili.models.spec import ModelSpec
from tuili.program.builder import Builder
from tuili.program.program import Value

#: (builder, x [T, hidden], spec, layer) -> [T, hidden]
Block = Callable[[Builder, Value, ModelSpec, int], Value]


def decoder(b: Builder, s: ModelSpec, *, attention: Block, mlp: Block) -> Value:
    """Embedding, layers, final norm, logits [R, vocab].

    After the last layer's attention only the rows whose output is wanted go on: nothing reads the others.
    """
    table = b.weight("model.embed_tokens.weight", s.vocab_size, s.hidden_size)
    x = b.embed(table)
    if s.embed_scale is not None:
        x = b.scale(x, s.embed_scale)
    for layer in range(s.num_layers):
        y = attention(b, _norm(b, x, s, f"model.layers.{layer}.input_layernorm"), s, layer)
        if layer == s.num_layers - 1:
            x, y = b.select_rows(x), b.select_rows(y)
        x = _residual(b, x, y, s, f"model.layers.{layer}.post_attention_layernorm")
        before = "pre_feedforward_layernorm" if s.post_norms else "post_attention_layernorm"
        y = mlp(b, _norm(b, x, s, f"model.layers.{layer}.{before}"), s, layer)
        x = _residual(b, x, y, s, f"model.layers.{layer}.post_feedforward_layernorm")
    x = _norm(b, x, s, "model.norm")
    logits = b.linear(x, table if s.tied else b.weight("lm_head.weight", s.vocab_size, s.hidden_size), split="column")
    return logits if s.final_softcap is None else b.softcap(logits, s.final_softcap)


def attention_block(b: Builder, x: Value, s: ModelSpec, layer: int) -> Value:
    """Grouped-query attention with rotary positions; optional biases and norms of q and k heads."""
    name = f"model.layers.{layer}.self_attn"
    q = _project(b, x, f"{name}.q_proj", s.q_dim, bias=s.qkv_bias)
    k = _project(b, x, f"{name}.k_proj", s.kv_dim, bias=s.qkv_bias)
    v = _project(b, x, f"{name}.v_proj", s.kv_dim, bias=s.qkv_bias)
    if s.qk_norm:
        q = b.rms_norm(q, b.weight(f"{name}.q_norm.weight", s.head_dim), s.norm_eps)
        k = b.rms_norm(k, b.weight(f"{name}.k_norm.weight", s.head_dim), s.norm_eps)
    q, k = (b.rope(value, s.layer_rope(layer), s.head_dim) for value in (q, k))
    out = b.attention(
        q,
        k,
        v,
        state=f"model.layers.{layer}.self_attn",
        head_dim=s.head_dim,
        scale=s.attn_scale,
        window=s.windows[layer],
        softcap=s.attn_softcap,
    )
    o_bias = b.weight(f"{name}.o_proj.bias", s.hidden_size) if s.out_bias else None
    return b.linear(out, b.weight(f"{name}.o_proj.weight", s.hidden_size, s.q_dim), o_bias, split="row")


def gated_mlp(b: Builder, x: Value, s: ModelSpec, layer: int) -> Value:
    """down(act(gate x) * up x)"""
    name = f"model.layers.{layer}.mlp"
    gate = _project(b, x, f"{name}.gate_proj", s.intermediate_size, bias=s.mlp_bias)
    up = _project(b, x, f"{name}.up_proj", s.intermediate_size, bias=s.mlp_bias)
    down_bias = b.weight(f"{name}.down_proj.bias", s.hidden_size) if s.mlp_bias else None
    down = b.weight(f"{name}.down_proj.weight", s.hidden_size, s.intermediate_size)
    return b.linear(b.act_mul(gate, up, s.act), down, down_bias, split="row")


def moe_mlp(b: Builder, x: Value, s: ModelSpec, layer: int) -> Value:
    """Each token goes through its top-k experts; their outputs are summed with the router's weights."""
    name = f"model.layers.{layer}.mlp"
    experts, hidden, inner = s.num_experts, s.hidden_size, s.moe_intermediate_size
    router = b.linear(x, b.weight(f"{name}.gate.weight", experts, hidden))
    routing = b.moe_route(router, s.num_experts_per_token, normalise=s.moe_normalise)
    gate = b.moe_linear(x, routing, b.weight(f"{name}.experts.gate_proj.weight", experts, inner, hidden), split="column")
    up = b.moe_linear(x, routing, b.weight(f"{name}.experts.up_proj.weight", experts, inner, hidden), split="column")
    down = b.weight(f"{name}.experts.down_proj.weight", experts, hidden, inner)
    return b.combine(b.moe_linear(b.act_mul(gate, up, s.act), routing, down, split="row"), routing)


def _project(b: Builder, x: Value, name: str, width: int, *, bias: bool) -> Value:
    weight = b.weight(f"{name}.weight", width, x.width)
    return b.linear(x, weight, b.weight(f"{name}.bias", width) if bias else None, split="column")


def _norm(b: Builder, x: Value, s: ModelSpec, name: str) -> Value:
    return b.rms_norm(x, b.weight(f"{name}.weight", s.hidden_size), s.norm_eps)


def _residual(b: Builder, x: Value, y: Value, s: ModelSpec, post_norm: str) -> Value:
    return b.add(x, _norm(b, y, s, post_norm) if s.post_norms else y)
