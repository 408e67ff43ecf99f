"""K-quants: super-blocks of 256 whose sub-blocks carry small integer scales, themselves scaled by a float16 ``d`` (and ``dmin``).

Layouts: ggml-common.h of ggml. Sub-blocks hold 16 elements in Q2_K, Q3_K and Q6_K, 32 in Q4_K and Q5_K.
"""

from typing import Any

import numpy as np

from tuili.quant.blocks import as_f32, block_format, unpack
from tuili.quant.format import Bytes, Floats

_SUPER = 256


def _scaled(q: Any, scales: Floats, minima: Floats | None = None) -> Floats:
    """scale * q - minimum, a scale for each of the equal sub-blocks of q [blocks, 256]."""
    sub_blocks = q.astype(np.float32).reshape(len(q), scales.shape[1], -1)
    out = scales[..., None] * sub_blocks
    if minima is not None:
        out = out - minima[..., None]
    return out.reshape(len(q), _SUPER)


def _q2_k(b: Any) -> Floats:
    scales = as_f32(b["d"]) * (b["scales"] & 15).astype(np.float32)
    minima = as_f32(b["dmin"]) * (b["scales"] >> 4).astype(np.float32)
    return _scaled(unpack(b["qs"], 2, 32), scales, minima)


def _q3_k_scales(packed: Bytes) -> Floats:
    """Sixteen 6-bit scales, offset by 32: four low bits from bytes 0–7, two high bits from bytes 8–11."""
    low = unpack(packed[:, :8], 4, 8)
    high = unpack(packed[:, 8:], 2, 4)
    return (low | (high << np.uint8(4))).astype(np.float32) - 32


def _q3_k(b: Any) -> Floats:
    low = unpack(b["qs"], 2, 32).astype(np.float32)
    high = unpack(b["hmask"], 1, 32).astype(np.float32)
    # A set mask bit means that nothing is subtracted.
    return _scaled(low - 4 * (1 - high), as_f32(b["d"]) * _q3_k_scales(b["scales"]))


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minima in 12 bytes: [blocks, 8] each.

    The first four of each are the low six bits of bytes 0–3 and 4–7; the last four take their low bits from the nibbles of
    bytes 8–11, their high bits from the top of bytes 0–3 and 4–7.
    """
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales: Bytes = np.concatenate([a % 64, c % 16 + a // 64 * 16], axis=1, dtype=np.uint8)
    minima: Bytes = np.concatenate([b % 64, c // 16 + b // 64 * 16], axis=1, dtype=np.uint8)
    return scales, minima


def _with_minima(b: Any, q: Bytes) -> Floats:
    scales, minima = _scales_and_minima(b["scales"])
    return _scaled(q, as_f32(b["d"]) * scales.astype(np.float32), as_f32(b["dmin"]) * minima.astype(np.float32))


def _q4_k(b: Any) -> Floats:
    return _with_minima(b, unpack(b["qs"], 4, 32))


def _q5_k(b: Any) -> Floats:
    high = unpack(b["qh"], 1, 32)
    return _with_minima(b, unpack(b["qs"], 4, 32) | (high << np.uint8(4)))


def _q6_k(b: Any) -> Floats:
    q = unpack(b["ql"], 4, 64) | (unpack(b["qh"], 2, 32) << np.uint8(4))
    return _scaled(q.astype(np.float32) - 32, as_f32(b["d"]) * b["scales"].astype(np.float32))


_Q2_K = [("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")]
_Q3_K = [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]
_Q4_K = [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]
_Q5_K = [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
_Q6_K = [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]

Q2_K = block_format("Q2_K", 10, _SUPER, _Q2_K, _q2_k)
Q3_K = block_format("Q3_K", 11, _SUPER, _Q3_K, _q3_k)
Q4_K = block_format("Q4_K", 12, _SUPER, _Q4_K, _q4_k)
Q5_K = block_format("Q5_K", 13, _SUPER, _Q5_K, _q5_k)
Q6_K = block_format("Q6_K", 14, _SUPER, _Q6_K, _q6_k)
