"""Non-linear 4-bit formats: a nibble indexes a table of 16 levels. Layouts and levels: ggml-common.h of ggml."""

from typing import Any

import numpy as np

from tuili.quant.blocks import as_f32, block_format, unpack
from tuili.quant.format import Floats

#: The 16 levels that a nibble stands for.
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def _iq4_nl(b: Any) -> Floats:
    return as_f32(b["d"]) * LEVELS[unpack(b["qs"], 4, 16)]


def _iq4_xs(b: Any) -> Floats:
    """Eight sub-blocks of 32, each with a 6-bit scale offset by 32: low four bits in scales_l, high two in scales_h."""
    low = unpack(b["scales_l"], 4, 1)
    high = ((b["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3).astype(np.uint8)
    scales = as_f32(b["d"]) * ((low | (high << np.uint8(4))).astype(np.float32) - 32)
    levels = LEVELS[unpack(b["qs"], 4, 16)].reshape(len(b), 8, 32)
    return (scales[..., None] * levels).reshape(len(b), 256)


IQ4_NL = block_format("IQ4_NL", 20, 32, [("d", "<f2"), ("qs", "u1", 16)], _iq4_nl)
IQ4_XS = block_format("IQ4_XS", 23, 256, [("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)], _iq4_xs)
