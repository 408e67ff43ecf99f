"""Random blocks of a quantised format: every bit pattern, or only numbers that a model file would hold."""

import numpy as np

from tuili.quant.format import Bytes, QuantFormat


def any_bits(fmt: QuantFormat, num_blocks: int, seed: int) -> Bytes:
    """Uniformly random bytes [num_blocks * block_bytes]: scales of all sizes, infinities and NaN among them."""
    return np.random.default_rng(seed).integers(0, 256, num_blocks * fmt.block_bytes, dtype=np.uint8)
