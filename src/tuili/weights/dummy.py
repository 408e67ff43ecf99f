"""Seeded random weights in any format: small models for tests and for trying the machinery without a file."""

import zlib
from collections.abc import Callable, Mapping

import numpy as np

from tuili.quant.format import Bytes, QuantFormat
from tuili.quant.registry import format_of
from tuili.weights.source import Weight

#: Standard deviation of the values.
STD = 0.05

#: Where a format has minima: the minimum's scale relative to ``d`` that centres the values on zero, the mean of the integers.
_CENTRE = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
#: E8M0 exponents that give MXFP4 values of about that deviation.
_MX_EXPONENTS = (119, 120, 121, 122)


def dummy_weights(
    decls: Mapping[str, tuple[int, ...]], seed: int, format_for: Callable[[str, tuple[int, ...]], str]
) -> dict[str, Weight]:
    """A weight for each name -> shape. ``format_for(name, shape)`` chooses the format of those with two dimensions or more.

    1-D weights are F32; norm weights (names ending in ``norm.weight``) lie near 1, all others near 0. A weight depends on the
    seed and on its own name only. Raises ValueError when rows are not whole blocks of the chosen format.
    """
    weights: dict[str, Weight] = {}
    for name, shape in decls.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        fmt = format_of("F32" if len(shape) == 1 else format_for(name, shape))
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        weights[name] = Weight(fmt.name, shape, {"data": random_data(fmt, shape, rng, mean)})
    return weights


def random_data(fmt: QuantFormat, shape: tuple[int, ...], rng: np.random.Generator, mean: float = 0.0) -> Bytes:
    """Bytes [*shape[:-1], row_bytes] of values with deviation STD; ``mean`` is for the float formats."""
    *leading, columns = shape
    row_bytes = fmt.row_bytes(columns)
    count = int(np.prod(shape))
    if fmt.layout is not None:
        data = _random_blocks(fmt, fmt.layout, count // fmt.block_size, rng)
    else:
        data = _as_floats(fmt.name, rng.normal(mean, STD, count).astype(np.float32))
    return data.reshape(*leading, row_bytes)


def _as_floats(name: str, values: np.ndarray) -> Bytes:
    match name:
        case "F16":
            return values.astype("<f2").view(np.uint8)
        case "BF16":
            return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        case _:
            return values.astype("<f4").view(np.uint8)


def _random_blocks(fmt: QuantFormat, layout: np.dtype[np.void], num_blocks: int, rng: np.random.Generator) -> Bytes:
    """Random integers and sub-block scales; the blocks' own scales are then chosen so that the values have deviation STD."""
    data = rng.integers(0, 256, num_blocks * fmt.block_bytes, dtype=np.uint8)
    blocks = data.view(layout)
    if "e" in (layout.names or ()):
        blocks["e"] = rng.choice(_MX_EXPONENTS, num_blocks)
        return data
    scales = rng.uniform(0.5, 1.5, num_blocks)
    minimum = next((field for field in ("m", "dmin") if field in (layout.names or ())), None)
    if minimum is None:
        # Formats that are symmetric about zero carry scales of both signs in real files.
        scales *= rng.choice((-1.0, 1.0), num_blocks)

    def set_scales(factor: float) -> None:
        blocks["d"] = scales * factor
        if minimum is not None:
            blocks[minimum] = scales * factor * _CENTRE[fmt.name]

    set_scales(1.0)
    set_scales(STD / float(fmt.decode(data).std()))
    return data
