"""Rotary embeddings: from the scaling parameters of a configuration to one frequency per pair of dimensions.

Sources: RoPE (arXiv:2104.09864), position interpolation (arXiv:2306.15595), YaRN (arXiv:2309.00071), LongRoPE (arXiv:2402.13753),
and the ``rope_parameters`` schema of Hugging Face transformers, of which these are the variants that need no run-time state.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuili.errors import ModelFileError, NotSupported
from tuili.program.program import RopeSpec

Parameters = Mapping[str, Any]


def rope_spec(cfg: Mapping[str, Any], head_dim: int, max_model_len: int | None = None) -> RopeSpec:
    """The rotary embedding of a configuration: ``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``."""
    parameters: dict[str, Any] = {"rope_theta": cfg.get("rope_theta") or 10000.0}
    parameters |= {"partial_rotary_factor": cfg.get("partial_rotary_factor") or 1.0}
    parameters |= cfg.get("rope_scaling") or {}
    parameters |= cfg.get("rope_parameters") or {}
    for key in ("max_position_embeddings", "original_max_position_embeddings"):
        if parameters.get(key) is None and cfg.get(key) is not None:
            parameters[key] = cfg[key]
    parameters["max_model_len"] = max_model_len or parameters.get("max_position_embeddings")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    make = _KINDS.get(kind)
    if make is None:
        raise NotSupported(f"rope scaling not supported yet: {kind}; supported: {', '.join(_KINDS)}")
    if not 1 < parameters["rope_theta"] < math.inf:
        raise ModelFileError(f"rope_theta is {parameters['rope_theta']}; it has to be above 1")
    dim = int(head_dim * parameters["partial_rotary_factor"])
    return make(dim, plain_frequencies(dim, parameters["rope_theta"]), parameters)


def plain_frequencies(dim: int, theta: float) -> list[float]:
    """theta ** (-2 i / dim) for i < dim / 2."""
    return [theta ** (-2.0 * i / dim) for i in range(dim // 2)]


def _need(parameters: Parameters, key: str) -> Any:
    value = parameters.get(key)
    if value is None:
        kind = parameters.get("rope_type") or parameters.get("type")
        raise ModelFileError(f"rope scaling {kind} needs {key}, which the model's configuration lacks")
    if not isinstance(value, list) and not 0 < value < math.inf:
        raise ModelFileError(f"rope scaling has {key} = {value!r}; it has to be a positive number")
    return value


def _default(dim: int, frequencies: Sequence[float], _: Parameters) -> RopeSpec:
    return RopeSpec(dim, tuple(frequencies))


def _linear(dim: int, frequencies: Sequence[float], parameters: Parameters) -> RopeSpec:
    factor = _need(parameters, "factor")
    return RopeSpec(dim, tuple(f / factor for f in frequencies))


def _factors(dim: int, frequencies: Sequence[float], parameters: Parameters) -> RopeSpec:
    """What GGUF files carry for llama3 scaling: one divisor a frequency, computed when the file was made."""
    return RopeSpec(dim, _divide(frequencies, _need(parameters, "factors")))


def _divide(frequencies: Sequence[float], factors: Sequence[float]) -> tuple[float, ...]:
    if len(factors) != len(frequencies):
        raise ModelFileError(f"the model has {len(factors)} rope factors for {len(frequencies)} frequencies")
    if not all(0 < factor < math.inf for factor in factors):
        raise ModelFileError("the model has rope factors that are not positive numbers")
    return tuple(f / factor for f, factor in zip(frequencies, factors, strict=True))


def _llama3(dim: int, frequencies: Sequence[float], parameters: Parameters) -> RopeSpec:
    factor, low, high = (_need(parameters, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = _need(parameters, "original_max_position_embeddings")
    if high <= low:
        raise ModelFileError(f"rope scaling llama3 has high_freq_factor {high} at or below low_freq_factor {low}")

    def scaled(frequency: float) -> float:
        turns = original * frequency / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        return (1 - smooth) * frequency / factor + smooth * frequency

    return RopeSpec(dim, tuple(scaled(f) for f in frequencies))


def _yarn(dim: int, frequencies: Sequence[float], parameters: Parameters) -> RopeSpec:
    original, theta = _need(parameters, "original_max_position_embeddings"), parameters["rope_theta"]
    factor = _need(parameters, "factor") if parameters.get("factor") else _need(parameters, "max_position_embeddings") / original

    def dimension(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(parameters.get("beta_fast") or 32), dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = (high - low) or 0.001
    ramp = [min(1.0, max(0.0, (i - low) / span)) for i in range(dim // 2)]
    mixed = tuple(f / factor * r + f * (1 - r) for f, r in zip(frequencies, ramp, strict=True))
    return RopeSpec(dim, mixed, _yarn_magnitude(factor, parameters))


def _yarn_magnitude(factor: float, parameters: Parameters) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    scale, scale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return magnitude(scale) / magnitude(scale_all) if scale and scale_all else magnitude(1.0)


def _longrope(dim: int, frequencies: Sequence[float], parameters: Parameters) -> RopeSpec:
    """The long factors when the context wanted exceeds the original one, else the short ones: one choice for all requests, so
    that a request's tokens depend on neither its length so far nor its neighbours."""
    original = _need(parameters, "original_max_position_embeddings")
    longest, wanted = _need(parameters, "max_position_embeddings"), _need(parameters, "max_model_len")
    factors = _need(parameters, "long_factor" if wanted > original else "short_factor")
    scale = parameters.get("factor") or longest / original
    magnitude = parameters.get("attention_factor")
    if magnitude is None:
        magnitude = math.sqrt(1 + math.log(scale) / math.log(max(2, original))) if scale > 1 else 1.0
    return RopeSpec(dim, _divide(frequencies, factors), float(magnitude))


_KINDS: dict[str, Callable[[int, Sequence[float], Parameters], RopeSpec]] = {
    "default": _default,
    "linear": _linear,
    "factors": _factors,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
