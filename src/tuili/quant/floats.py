"""Plain floating-point formats: one element a block."""

import numpy as np

from tuili.quant.format import Bytes, Floats, QuantFormat


def _f32(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view("<f4")


def _f16(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _bf16(data: Bytes) -> Floats:
    """bfloat16 is the upper half of a float32."""
    return (np.ascontiguousarray(data).view("<u2").astype(np.uint32) << 16).view(np.float32)


F32 = QuantFormat("F32", 0, 1, 4, _f32)
F16 = QuantFormat("F16", 1, 1, 2, _f16)
BF16 = QuantFormat("BF16", 30, 1, 2, _bf16)
