"""All formats by name, and the name of every tensor type number met in GGUF files."""

from collections.abc import Mapping
from types import MappingProxyType

from tuili.errors import NotSupported
from tuili.quant import floats, iquants, kquants, legacy, microscaling
from tuili.quant.format import QuantFormat

#: Formats that can be decoded, by name.
FORMATS: Mapping[str, QuantFormat] = MappingProxyType(
    {
        fmt.name: fmt
        for fmt in (
            *(floats.F32, floats.F16, floats.BF16),
            *(legacy.Q4_0, legacy.Q4_1, legacy.Q5_0, legacy.Q5_1, legacy.Q8_0),
            *(kquants.Q2_K, kquants.Q3_K, kquants.Q4_K, kquants.Q5_K, kquants.Q6_K),
            *(iquants.IQ4_NL, iquants.IQ4_XS, microscaling.MXFP4),
        )
    }
)

#: Tensor type number -> name. Sources: enum ggml_type of ggml, its removed entries included, and (from 133 on) of ik_llama.cpp.
#: Number 36 has two meanings in circulation: a removed repacked type of ggml, and I2_S of bitnet.cpp.
GGML_TYPE_NAMES: Mapping[int, str] = MappingProxyType(
    {
        **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_2", 5: "Q4_3", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1"},
        **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"},
        **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS"},
        **{24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16"},
        **{31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0"},
        **{36: "IQ4_NL_4_4 or I2_S", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0"},
        **{133: "Q6_0", 134: "IQ1_BN", 135: "IQ2_BN", 137: "IQ2_K", 138: "IQ3_K", 139: "IQ4_K", 140: "IQ5_K", 141: "IQ6_K"},
        **{144: "IQ4_KS", 145: "IQ2_KS", 146: "IQ4_KSS", 152: "IQ5_KS", 153: "IQ2_KT", 154: "IQ3_KT", 155: "IQ4_KT"},
        **{156: "IQ3_KS", 157: "IQ2_KL", 158: "IQ1_KT"},
    }
)


def format_of(name: str) -> QuantFormat:
    """The format of that name; raises NotSupported, naming the formats there are."""
    fmt = FORMATS.get(name)
    if fmt is None:
        raise NotSupported(f"tensor format not supported yet: {name}; supported: {', '.join(FORMATS)}")
    return fmt


def format_of_type(ggml_type: int, where: str = "") -> QuantFormat:
    """The format with that GGUF tensor type number; raises NotSupported with its number and, where it has one, its name.

    ``where`` begins the message: the file and tensor.
    """
    name = GGML_TYPE_NAMES.get(ggml_type)
    if name is not None and name in FORMATS:
        return FORMATS[name]
    problem = f"unknown tensor type number {ggml_type}"
    if name is not None:
        problem = f"tensor format not supported yet: {name} (type number {ggml_type})"
    raise NotSupported(f"{where + ': ' if where else ''}{problem}; supported: {', '.join(FORMATS)}")
