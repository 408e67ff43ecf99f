"""OCP microscaling formats (OCP Microscaling Formats Specification v1.0): a shared power-of-two scale, small floats."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tuili.quant.blocks import block_format, unpack
from tuili.quant.format import Floats

#: E2M1 values, doubled so that they are integers; the scale is halved in return.
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def e8m0_half(exponents: npt.NDArray[np.uint8]) -> Floats:
    """2^(e - 128): half of the E8M0 scale 2^(e - 127). e of 0 and 1 give subnormal float32 numbers."""
    bits = exponents.astype(np.uint32)
    normal = (np.maximum(bits, 1) - 1) << 23
    subnormal = np.uint32(0x00200000) << np.minimum(bits, 1)
    return np.where(bits < 2, subnormal, normal).view(np.float32)


def _mxfp4(b: Any) -> Floats:
    return e8m0_half(b["e"])[:, None] * E2M1_DOUBLED[unpack(b["qs"], 4, 16)]


MXFP4 = block_format("MXFP4", 39, 32, [("e", "u1"), ("qs", "u1", 16)], _mxfp4)
