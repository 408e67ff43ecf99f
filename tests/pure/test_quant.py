"""Decoders against the gguf package, bit for bit, and the registry's answers for everything that cannot be decoded."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from support.random_blocks import any_bits
from tuili.errors import NotSupported
from tuili.quant.format import Bytes, QuantFormat
from tuili.quant.registry import FORMATS, GGML_TYPE_NAMES, format_of, format_of_type

ALL = sorted(FORMATS)


def assert_decodes_like_gguf(fmt: QuantFormat, data: Bytes) -> None:
    with np.errstate(all="ignore"):
        expected = dequantize(data, gguf.GGMLQuantizationType(fmt.ggml_type))
    actual = fmt.decode(data)
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    both_nan = np.isnan(actual) & np.isnan(expected)
    same_bits = actual.view(np.uint32) == expected.view(np.uint32)
    assert (same_bits | both_nan).all()


@pytest.mark.parametrize("name", ALL)
def test_any_bits_decode_as_the_gguf_package_does(name: str) -> None:
    """Random bytes reach every float16 scale: zero, both signs, subnormal, largest, infinite, NaN."""
    fmt = FORMATS[name]
    data = any_bits(fmt, 6 * 1500, seed=1).reshape(2, 3, -1)
    assert_decodes_like_gguf(fmt, data)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7B, 0x80, 0x01])
def test_constant_bytes(name: str, fill: int) -> None:
    """0x7b7b is near the largest float16, 0x0101 is subnormal, 0x8080 a negative subnormal."""
    fmt = FORMATS[name]
    assert_decodes_like_gguf(fmt, np.full((1, fmt.block_bytes * 4), fill, np.uint8))


@pytest.mark.parametrize("name", ALL)
def test_more_blocks_than_one_chunk_and_strided_input(name: str) -> None:
    fmt = FORMATS[name]
    wide = any_bits(fmt, 2 * 4500, seed=2).reshape(4500, -1)
    every_other = wide[::2, : fmt.block_bytes]
    assert_decodes_like_gguf(fmt, every_other)
    assert_decodes_like_gguf(fmt, any_bits(fmt, 4097, seed=3).reshape(1, -1))


def test_sizes_and_numbers_are_those_of_the_gguf_package() -> None:
    for fmt in FORMATS.values():
        kind = gguf.GGMLQuantizationType[fmt.name]
        assert (fmt.ggml_type, (fmt.block_size, fmt.block_bytes)) == (kind.value, gguf.GGML_QUANT_SIZES[kind])


def test_every_type_of_the_gguf_package_has_its_name() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert GGML_TYPE_NAMES[kind.value] == kind.name


def test_row_bytes_wants_whole_blocks() -> None:
    assert FORMATS["Q4_K"].row_bytes(512) == 288
    with pytest.raises(ValueError, match=r"Q4_K.*256.*500"):
        FORMATS["Q4_K"].row_bytes(500)


def test_half_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="17 bytes"):
        FORMATS["Q4_0"].decode(np.zeros(17, np.uint8))


def test_formats_without_a_decoder_are_named() -> None:
    with pytest.raises(NotSupported, match="not supported yet: IQ2_XXS"):
        format_of("IQ2_XXS")
    with pytest.raises(NotSupported, match=r"Q4_0_4_4 \(type number 31\)"):
        format_of_type(31)
    with pytest.raises(NotSupported, match="250"):
        format_of_type(250)
    assert format_of_type(12) is format_of("Q4_K")
