"""A GGUF file's metadata as a Hugging Face style configuration, so that there is one way from hyper-parameters to a model.

Key names: the GGUF specification (ggml, docs/gguf.md) and the constants of its ``gguf`` package. Every key ``{arch}.x`` below is
looked up under the file's own architecture name.
"""

from typing import Any

from tuili.errors import ModelFileError, NotSupported
from tuili.quant.registry import format_of
from tuili.weights.source import MetadataValue, WeightSource

#: Hugging Face key -> GGUF key after the architecture's name.
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "rope_local_base_freq": "rope.freq_base_swa",
}

_SCALING_KEYS = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def architecture_of(source: WeightSource) -> str:
    """``general.architecture`` of the file; raises ModelFileError when it is absent."""
    name = source.metadata.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise ModelFileError(f"general.architecture is {name!r}; a model file has to name its architecture, as in 'llama'")
    return name


def gguf_config(source: WeightSource) -> dict[str, Any]:
    """The configuration of the model in ``source``. Values are passed on as they are; ``ModelSpec`` judges them."""
    arch = architecture_of(source)
    get = source.metadata.get
    names = set(source.names())
    cfg: dict[str, Any] = {"model_type": arch}
    for key, suffix in _KEYS.items():
        value = get(f"{arch}.{suffix}")
        if value is not None:
            cfg[key] = _number(_same_in_all_layers(value, f"{arch}.{suffix}"), f"{arch}.{suffix}")
    pattern = get(f"{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, list):  # one entry a layer: whether it has a window
        cfg["layer_types"] = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
    elif pattern is not None:
        cfg["sliding_window_pattern"] = _number(pattern, f"{arch}.attention.sliding_window_pattern")
    value_length = get(f"{arch}.attention.value_length")
    if value_length not in (None, cfg.get("head_dim")):
        raise NotSupported(
            f"value heads of {value_length} beside key heads of {cfg.get('head_dim')} dimensions: not supported yet"
        )
    if "token_embd.weight" not in names:
        raise ModelFileError("the file has no token_embd.weight: it holds no (whole) language model")
    blocks = len({name.split(".")[1] for name in names if name.startswith("blk.")})
    if cfg.get("num_hidden_layers", 0) > blocks:
        raise ModelFileError(
            f"{arch}.block_count is {cfg['num_hidden_layers']}, but the file has tensors of {blocks} blocks only"
        )
    cfg["vocab_size"] = source.tensor("token_embd.weight").shape[0]
    cfg["tie_word_embeddings"] = "output.weight" not in names
    cfg["attention_bias"] = "blk.0.attn_q.bias" in names
    cfg["attention_out_bias"] = "blk.0.attn_output.bias" in names
    cfg["mlp_bias"] = "blk.0.ffn_down.bias" in names
    cfg["norm_topk_prob"] = get(f"{arch}.expert_weights_norm", True)
    cfg["rope_parameters"] = _rope_parameters(source, arch, cfg, names)
    return cfg


def _same_in_all_layers(value: MetadataValue, key: str) -> MetadataValue:
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise NotSupported(f"{key} differs between layers: {value}: not supported yet")
    return value[0]


def _number(value: MetadataValue, key: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31:
        raise ModelFileError(f"{key} is {value!r}; it has to be a number from 0 to 2**31 - 1")
    return value


def _rope_parameters(source: WeightSource, arch: str, cfg: dict[str, Any], names: set[str]) -> dict[str, Any]:
    get = source.metadata.get
    parameters: dict[str, Any] = {"rope_theta": _number(get(f"{arch}.rope.freq_base", 10000.0), f"{arch}.rope.freq_base")}
    head_dim = cfg.get("head_dim") or cfg.get("hidden_size", 0) // (cfg.get("num_attention_heads") or 1)
    dimensions = get(f"{arch}.rope.dimension_count")
    if dimensions is not None and head_dim:
        parameters["partial_rotary_factor"] = _number(dimensions, f"{arch}.rope.dimension_count") / head_dim
    kind = get(f"{arch}.rope.scaling.type", "none")
    parameters["rope_type"] = "default" if kind == "none" else kind
    for key, suffix in _SCALING_KEYS.items():
        value = get(f"{arch}.rope.scaling.{suffix}")
        if value is not None:
            parameters[key] = _number(value, f"{arch}.rope.scaling.{suffix}")
    if "rope_freqs.weight" in names:
        _refuse_unless_plain(kind, "rope_freqs.weight")
        parameters |= {"rope_type": "factors", "factors": _numbers(source, "rope_freqs.weight")}
    if "rope_factors_long.weight" in names:
        long, short = (_numbers(source, f"rope_factors_{which}.weight") for which in ("long", "short"))
        magnitude = get(f"{arch}.rope.scaling.attn_factor", 1.0)
        parameters |= {"rope_type": "longrope", "long_factor": long, "short_factor": short, "attention_factor": magnitude}
    elif get(f"{arch}.rope.scaling.attn_factor", 1.0) != 1.0:
        raise NotSupported(f"{arch}.rope.scaling.attn_factor without rope_factors tensors: not supported yet")
    for suffix, plain in (("yarn_log_multiplier", 0.0), ("yarn_ext_factor", 1.0)):
        if get(f"{arch}.rope.scaling.{suffix}", plain) != plain:
            raise NotSupported(f"{arch}.rope.scaling.{suffix}: not supported yet")
    return parameters


def _refuse_unless_plain(kind: MetadataValue, tensor: str) -> None:
    if kind != "none":
        raise NotSupported(f"rope scaling {kind} together with {tensor}: not supported yet")


def _numbers(source: WeightSource, name: str) -> list[float]:
    weight = source.tensor(name)
    return format_of(weight.format).decode(weight.data).reshape(-1).tolist()
