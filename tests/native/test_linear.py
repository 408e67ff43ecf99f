"""The linear kernels of every ISA level this CPU has, against the formats' definition in float64 and against each other."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from tuili import _native
from tuili.quant.format import Bytes, QuantFormat
from tuili.quant.registry import FORMATS

Floats = npt.NDArray[np.float32]

LEVELS = _native.linear_levels()
FLOAT_FORMATS = ("F32", "F16", "BF16")
QUANTISED = [name for name in FORMATS if name not in FLOAT_FORMATS]
MAX_NMSE = 5e-4  # the cap of `linear` in program/ops.py
SILU, GELU_TANH, GELU = range(3)

#: Where a block keeps its float16 scale and minimum.
SCALE_AT = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}
MIN_AT = {"Q4_1": 2, "Q5_1": 2, "Q2_K": 82, "Q4_K": 2, "Q5_K": 2}


def weights(fmt: QuantFormat, rows: int, cols: int, seed: int = 0) -> Bytes:
    """Random rows of a format [rows, row_bytes], with scales of the size that models have."""
    rng = np.random.default_rng(seed)
    if fmt.name in FLOAT_FORMATS:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        if fmt.name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(rows, -1)
        return values.astype(np.float16 if fmt.name == "F16" else np.float32).view(np.uint8).reshape(rows, -1)
    blocks = rng.integers(0, 256, (rows * cols // fmt.block_size, fmt.block_bytes), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.01, (2, len(blocks))).astype(np.float16)
    if fmt.name == "MXFP4":
        blocks[:, 0] = rng.integers(110, 125, len(blocks))
    else:
        at = SCALE_AT.get(fmt.name, 0)
        blocks[:, at : at + 2] = scales[0][:, None].view(np.uint8)
    if fmt.name in MIN_AT:
        at = MIN_AT[fmt.name]
        blocks[:, at : at + 2] = (-scales[1] if fmt.name in ("Q4_1", "Q5_1") else scales[1])[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def matrix(level: str, fmt: QuantFormat, data: Bytes, cols: int) -> "_native.LinearMatrix":
    return _native.LinearMatrix(level, fmt.ggml_type, data, cols)


def activations(rows: int, cols: int, seed: int = 1) -> Floats:
    """Heavy-tailed rows of different sizes, as hidden states are."""
    rng = np.random.default_rng(seed)
    return (rng.standard_t(4, (rows, cols)) * rng.uniform(0.01, 30, (rows, 1))).astype(np.float32)


def nmse(actual: Floats, exact: npt.NDArray[np.float64]) -> float:
    return float(np.sum((actual - exact) ** 2) / np.sum(exact**2))


def shapes(fmt: QuantFormat) -> list[tuple[int, int]]:
    """Rows and columns: a tail tile, one row, and column counts that are no multiple of the kernels' own units."""
    cols = (32, 96, 576) if fmt.block_size <= 32 else (256, 768)
    return [(37, cols[0]), (1, cols[1]), (16, cols[-1])] + ([(40, 7)] if fmt.block_size == 1 else [])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_linear_is_close_to_float64(level: str, fmt: QuantFormat) -> None:
    for rows, cols in [*shapes(fmt), (48, 1280)]:
        data = weights(fmt, rows, cols)
        exact_weights = fmt.decode(data).astype(np.float64)
        for num_tokens in (1, 3, 14, 45) if rows > 1 else (45,):
            x = activations(num_tokens, cols)
            exact = x.astype(np.float64) @ exact_weights.T
            error = nmse(matrix(level, fmt, data, cols).linear(x), exact)
            assert error < (1e-10 if fmt.name in FLOAT_FORMATS else MAX_NMSE), (rows, cols, num_tokens)
            fine = nmse(matrix(level, fmt, data, cols).linear(x, fine=True), exact)
            assert fine < 1e-7, (rows, cols, num_tokens)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_unpacking_gives_the_decoded_bits(level: str, fmt: QuantFormat) -> None:
    for rows, cols in shapes(fmt):
        for data in (weights(fmt, rows, cols), any_bits(fmt, rows, cols)):
            expected = fmt.decode(data)
            actual = matrix(level, fmt, data, cols).unpack()
            same = (actual.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(actual) & np.isnan(expected))
            assert same.all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_a_row_of_the_file_has_the_bits_of_the_packed_one(level: str, fmt: QuantFormat) -> None:
    for rows, cols in [*shapes(fmt), (3, 1280)]:
        for data in (weights(fmt, rows, cols), any_bits(fmt, rows, cols)):
            unpacked = matrix(level, fmt, data, cols).unpack()
            decoded = _native.linear_decode_rows(level, fmt.ggml_type, data, cols)
            same = (decoded.view(np.uint32) == unpacked.view(np.uint32)) | (np.isnan(decoded) & np.isnan(unpacked))
            assert same.all()


def any_bits(fmt: QuantFormat, rows: int, cols: int) -> Bytes:
    return np.random.default_rng(3).integers(0, 256, (rows, fmt.row_bytes(cols)), dtype=np.uint8)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_a_row_has_the_same_bits_in_any_company_and_on_every_level(fmt: QuantFormat) -> None:
    """One row alone, few rows, many rows, gathered rows, other tile ranges, other levels: not a bit differs."""
    rows, cols = 53, 1280
    data, x = weights(fmt, rows, cols), activations(70, cols)
    expected = matrix(LEVELS[0], fmt, data, cols).linear(x)
    fine = matrix(LEVELS[0], fmt, data, cols).linear(x, fine=True)
    for level in LEVELS:
        weight = matrix(level, fmt, data, cols)
        for count in (1, 2, 3, 5, 13, 33, 70):
            assert (weight.linear(x[:count], fine=True) == fine[:count]).all(), (level, count)
        for tiles_at_once in (1, 3, 100):
            assert (weight.linear(x, tiles_at_once=tiles_at_once) == expected).all()
        for count in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 33):
            assert (weight.linear(x[:count]) == expected[:count]).all(), (level, count)
        order = np.array([69, 0, 3, 3, 17], np.int32)
        assert (weight.linear(x, row_index=order) == expected[order]).all()
        scattered = weight.linear(x, row_index=order, out_index=np.array([4, 2, 0, 1, 3], np.int32))
        assert (scattered == expected[[3, 3, 0, 17, 69]]).all()


@pytest.mark.parametrize("fmt", [FORMATS[n] for n in QUANTISED], ids=lambda f: f.name)
@pytest.mark.parametrize("byte", [0x00, 0x0F, 0x80, 0xF0, 0xFF])
def test_sums_stay_exact_at_the_ends_of_their_range(fmt: QuantFormat, byte: int) -> None:
    """All levels at one end, activations all at 127 times their scale, or -127, or both in turn."""
    rows, cols = 16, 512
    data = weights(fmt, rows, cols)
    scales = [] if fmt.name == "MXFP4" else [SCALE_AT.get(fmt.name, 0), *([MIN_AT[fmt.name]] if fmt.name in MIN_AT else [])]
    kept = np.isin(np.arange(fmt.block_bytes), [at + i for at in scales for i in (0, 1)] or [0])
    data = np.where(np.tile(kept, cols // fmt.block_size), data, np.uint8(byte))
    x = np.repeat(np.array([[1], [-1]], np.float32), cols, axis=1)
    x = np.concatenate([x, x[:1] * np.where(np.arange(cols) % 2, 1, -1), x[:1] * np.where(np.arange(cols) % 4 < 2, 1, -1)] * 2)
    x = np.ascontiguousarray(x, np.float32)
    exact = x.astype(np.float64) @ fmt.decode(data).astype(np.float64).T
    for level in LEVELS:
        weight = matrix(level, fmt, data, cols)
        out = weight.linear(x)
        assert np.abs(out - exact).max() <= 1e-5 * np.abs(exact).max()
        assert (weight.linear(x[:3]) == out[:3]).all()  # few rows: the other path


@pytest.mark.parametrize("level", LEVELS)
def test_more_rows_than_one_pass_takes(level: str) -> None:
    fmt = FORMATS["Q4_K"]
    data, x = weights(fmt, 16, 256), activations(600, 256)
    weight = matrix(level, fmt, data, 256)
    whole = weight.linear(x)
    for first in (0, 255, 256, 511, 512, 599):
        assert (weight.linear(x[first : first + 1])[0] == whole[first]).all()


@pytest.mark.parametrize("level", LEVELS)
def test_rows_of_the_matrix_can_be_reordered_while_packing(level: str) -> None:
    fmt = FORMATS["Q5_0"]
    data, x = weights(fmt, 40, 96), activations(2, 96)
    order = np.random.default_rng(0).permutation(40).astype(np.int32)
    weight = _native.LinearMatrix(level, fmt.ggml_type, data, 96, order)
    assert (weight.unpack() == fmt.decode(data[order])).all()
    assert (weight.linear(x) == matrix(level, fmt, data, 96).linear(x)[:, order]).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fmt", [FORMATS[n] for n in ("Q4_1", "Q8_0", "Q6_K", "Q2_K", "F16")], ids=lambda f: f.name)
def test_not_a_number_stays_in_its_row(level: str, fmt: QuantFormat) -> None:
    data, x = weights(fmt, 20, 512), activations(14, 512)
    weight = matrix(level, fmt, data, 512)
    clean = weight.linear(x)
    broken = x.copy()
    broken[3, 100], broken[7, 511], broken[9, 0] = np.nan, np.inf, -np.inf
    out = weight.linear(broken)
    bad = np.array([3, 7, 9])
    assert not np.isfinite(out[bad]).any()
    good = np.setdiff1d(np.arange(14), bad)
    assert (out[good] == clean[good]).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fmt", [FORMATS[n] for n in QUANTISED], ids=lambda f: f.name)
def test_zero_and_extreme_rows(level: str, fmt: QuantFormat) -> None:
    """A row of zeros gives zeros; rows of huge and tiny numbers stay accurate; so does a block far below the row's maximum."""
    data, x = weights(fmt, 32, 512), activations(5, 512)
    x[0] = 0
    x[1] *= np.float32(1e30) / np.abs(x[1]).max()
    x[2] *= np.float32(1e-30) / np.abs(x[2]).max()
    x[3, 64:] = 0
    x[4, :256] *= np.float32(1e-12)
    out = matrix(level, fmt, data, 512).linear(x)
    w = fmt.decode(data).astype(np.float64)
    exact = x.astype(np.float64) @ w.T
    assert (out[0] == 0).all()
    for row in range(1, 5):  # against the size of the products' sum, as one row's own sum may cancel
        size = np.sum(x[row].astype(np.float64) ** 2) * np.sum(w**2) / w.shape[1]
        assert np.sum((out[row] - exact[row]) ** 2) / size < MAX_NMSE


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "F16"])
def test_bias_is_added_last(level: str, name: str) -> None:
    fmt = FORMATS[name]
    data, x = weights(fmt, 21, 256), activations(3, 256)
    bias = np.random.default_rng(2).standard_normal(21).astype(np.float32)
    weight = matrix(level, fmt, data, 256)
    assert (weight.linear(x, bias=bias) == weight.linear(x) + bias).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("formats", [("Q4_K", "Q4_K"), ("Q5_0", "Q8_0"), ("F16", "Q4_1"), ("BF16", "BF16")], ids="-".join)
def test_gate_up_act_equals_its_parts(level: str, formats: tuple[str, str]) -> None:
    """Activations in float64: silu x / (1 + e^-x); gelu by tanh as in the GELU paper; gelu x Phi(x)."""
    gate_fmt, up_fmt = (FORMATS[name] for name in formats)
    gate = matrix(level, gate_fmt, weights(gate_fmt, 37, 512, seed=5), 512)
    up = matrix(level, up_fmt, weights(up_fmt, 37, 512, seed=6), 512)
    gate_bias, up_bias = np.random.default_rng(7).standard_normal((2, 37)).astype(np.float32)
    for num_tokens in (1, 20):
        x = activations(num_tokens, 512) * np.float32(0.01)
        g, u = gate.linear(x, bias=gate_bias), up.linear(x, bias=up_bias)
        for act, function in ((SILU, silu), (GELU_TANH, gelu_tanh), (GELU, gelu)):
            out = gate.gate_up_act(up, x, act, bias=gate_bias, up_bias=up_bias)
            assert nmse(out, function(g.astype(np.float64)) * u) < 1e-12


def silu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def test_a_format_refuses_columns_that_are_no_whole_blocks() -> None:
    for level in LEVELS:
        assert not _native.linear_supports(level, FORMATS["Q4_K"].ggml_type, 320)
        assert not _native.linear_supports(level, FORMATS["Q8_0"].ggml_type, 33)
        assert not _native.linear_supports(level, 16, 256)  # IQ2_XXS
        assert _native.linear_supports(level, FORMATS["F16"].ggml_type, 33)
