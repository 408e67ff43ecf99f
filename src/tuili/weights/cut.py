"""Parts of stored weights, taken as bytes: nothing is decoded, and no block is ever cut."""

import numpy as np

from tuili.errors import ConfigError
from tuili.quant.registry import format_of
from tuili.weights.source import Weight


def cut(weight: Weight, axis: int, start: int, stop: int, name: str = "weight") -> Weight:
    """Elements [start, stop) along ``axis``, contiguous: a copy where other columns lie between.

    Raises ConfigError when that cuts through a block of the format.
    """
    fmt = format_of(weight.format)
    shape = (*weight.shape[:axis], stop - start, *weight.shape[axis + 1 :])
    if axis < len(weight.shape) - 1:
        return Weight(
            weight.format, shape, {"data": np.ascontiguousarray(weight.data[(slice(None),) * axis + (slice(start, stop),)])}
        )
    for edge in (start, stop):
        if edge % fmt.block_size:
            raise ConfigError(
                f"{name}: column {edge} lies inside a block of {fmt.block_size} {fmt.name} elements, "
                f"so its {weight.shape[-1]} columns cannot be divided there; use fewer ranks or another format"
            )
    return Weight(
        weight.format, shape, {"data": np.ascontiguousarray(weight.data[..., fmt.row_bytes(start) : fmt.row_bytes(stop)])}
    )
