"""Blocks of 32 with one float16 scale ``d``, some with a float16 minimum ``m``. Layouts: ggml-common.h of ggml.

Byte j of ``qs`` holds the low four bits of elements j (low nibble) and j + 16; bit i of ``qh`` is the fifth bit of element i.
"""

from typing import Any

import numpy as np

from tuili.quant.blocks import as_f32, block_format, unpack
from tuili.quant.format import Bytes, Floats


def _five_bits(b: Any) -> Bytes:
    high = np.unpackbits(b["qh"], axis=1, bitorder="little")
    return unpack(b["qs"], 4, 16) | (high << np.uint8(4))


def _q4_0(b: Any) -> Floats:
    return as_f32(b["d"]) * (unpack(b["qs"], 4, 16).astype(np.float32) - 8)


def _q4_1(b: Any) -> Floats:
    return as_f32(b["d"]) * unpack(b["qs"], 4, 16).astype(np.float32) + as_f32(b["m"])


def _q5_0(b: Any) -> Floats:
    return as_f32(b["d"]) * (_five_bits(b).astype(np.float32) - 16)


def _q5_1(b: Any) -> Floats:
    return as_f32(b["d"]) * _five_bits(b).astype(np.float32) + as_f32(b["m"])


def _q8_0(b: Any) -> Floats:
    return as_f32(b["d"]) * b["qs"].astype(np.float32)


Q4_0 = block_format("Q4_0", 2, 32, [("d", "<f2"), ("qs", "u1", 16)], _q4_0)
Q4_1 = block_format("Q4_1", 3, 32, [("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)], _q4_1)
Q5_0 = block_format("Q5_0", 6, 32, [("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)], _q5_0)
Q5_1 = block_format("Q5_1", 7, 32, [("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)], _q5_1)
Q8_0 = block_format("Q8_0", 8, 32, [("d", "<f2"), ("qs", "i1", 32)], _q8_0)
