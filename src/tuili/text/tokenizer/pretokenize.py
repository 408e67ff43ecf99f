"""How text is cut into words before BPE merges run: one row for each name of ``tokenizer.ggml.pre``.

The names are those that llama.cpp's converter writes (convert_hf_to_gguf.py, get_vocab_base_pre). The patterns are facts about
the models: as in each model's own tokenizer.json where that is the source named, else as llama.cpp reads the name
(src/llama-vocab.cpp, llm_tokenizer_bpe). They are in Oniguruma's syntax. The patterns of a row are applied one after the other,
each cutting what the ones before left.

Left out on purpose: "superbpe", "tiny_aya" and "cohere2moe" look ahead over all digits that follow, which takes quadratic time on
a long number; "gemma4" and "sarvam-moe" are no byte-level vocabularies.
"""

from dataclasses import dataclass, replace

from tuili.errors import NotSupported

_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_NOT_HAN = r"&&[^\p{Han}]"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _TAIL
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|""" + _TAIL
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


def _cased(suffix: str, upper: str = f"[{_UPPER}]", lower: str = f"[{_LOWER}]") -> str:
    """Words of upper, then lower case letters, with an optional character before and a contraction after."""
    return rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{suffix}"


TEKKEN = _cased("") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
O200K = _cased(_CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
YOUTU = _cased(_CONTRACTION + "?") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
KIMI = (
    r"[\p{Han}]+|"
    + _cased(_CONTRACTION + "?", f"[{_UPPER}{_NOT_HAN}]", f"[{_LOWER}{_NOT_HAN}]")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    + _TAIL
)

# The cased letters of DeepSeek-LLM's pattern, as its tokenizer.json lists them.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """``ignore_merges``: a word that is a token is taken whole. ``add_bos``: the default when the file has no add_bos_token."""

    patterns: tuple[str, ...]
    source: str
    normal_form: str | None = None
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA_CPP = "llama.cpp, src/llama-vocab.cpp"


def _rows(names: str, *patterns: str, source: str = _LLAMA_CPP) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), PreTokenizer(patterns, source))


_ROWS: dict[str, PreTokenizer] = {
    **_rows("gpt-2 phi-2 jais gigachat exaone4 a.x-4.0 mellum trillion granite-docling", GPT2),
    **_rows("starcoder refact smollm codeshell exaone minerva-7b mellum2", r"\p{N}", GPT2),
    **_rows("dbrx smaug-bpe", CL100K, source="tiktoken, cl100k_base"),
    **_rows("chatglm-bpe glm4", CL100K, source="THUDM/glm-4-9b-chat-hf tokenizer.json"),
    **_rows("llama-bpe llama3 llama-v3", CL100K, source="meta-llama/Meta-Llama-3-8B tokenizer.json"),
    **_rows("falcon3 falcon-h1 pixtral midm-2.0 lfm2", CL100K),
    **_rows("minicpm5", r"\p{N}{1,3}", CL100K.replace(r"\p{N}{1,3}", r"\p{N}+"), source="openbmb/MiniCPM5-1B tokenizer.json"),
    **_rows("stablelm2 hunyuan solar-open kormo megrez grok-2 deepseek-r1-qwen", QWEN2),
    **_rows("qwen2", QWEN2, source="transformers, models/qwen2/tokenization_qwen2.py"),
    **_rows("qwen35", QWEN35, source="transformers, models/qwen3_5/tokenization_qwen3_5.py"),
    **_rows("laguna", r"[^\n]+|[\n]+", QWEN2),
    **_rows(
        "seed-coder",
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _TAIL,
        source="ByteDance-Seed/Seed-Coder-8B-Base tokenizer.json",
    ),
    **_rows(
        "bailingmoe bailingmoe2 llada-moe",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        source="inclusionAI/Ling-lite tokenizer.json",
    ),
    **_rows("command-r", r"\p{N}", GPT2, source="transformers, models/cohere/tokenization_cohere.py"),
    **_rows("olmo mpt", GPT2, source="transformers, models/gpt_neox/tokenization_gpt_neox.py"),
    **_rows("tekken", TEKKEN, source="mistralai/Mistral-Nemo-Base-2407 tokenizer.json"),
    **_rows("gpt-4o llama4 kanana2 talkie minimax-m2", O200K, source="tiktoken, o200k_base"),
    **_rows("youtu", "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", YOUTU),
    **_rows("kimi-k2", KIMI, source="moonshotai/Kimi-K2-Instruct tokenization_kimi.py"),
    **_rows(
        "deepseek-llm",
        "[\r\n]",
        rf"\s?[{_DEEPSEEK_LETTERS}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"(?<!\s)\s+$",  # \s+$ there: the same, without trying again from every space of a run
        r"[一-龥ࠀ-一가-퟿]+",
        r"\p{N}+",
        source="deepseek-ai/deepseek-llm-7b-base tokenizer.json",
    ),
    **_rows(
        "deepseek-coder",
        "[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[一-龥ࠀ-一가-퟿]+",
        r"\p{N}",
        source="deepseek-ai/deepseek-coder-6.7b-base tokenizer.json",
    ),
    **_rows(
        "deepseek-v3 hunyuan-dense joyai-llm",
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        DEEPSEEK3,
        source="deepseek-ai/DeepSeek-V3 tokenizer.json",
    ),
    **_rows("falcon", r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    **_rows("bloom poro-chat gpt3-finnish", BLOOM, source="bigscience/bloom tokenizer.json"),
    **_rows("viking", BLOOM, r"\p{N}"),
    **_rows("default", r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}

_NFC = ("qwen2", "qwen35", "command-r", "olmo", "mpt")
_BOS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
_WHOLE_WORDS = (*_BOS, "chatglm-bpe", "glm4", "gpt-4o", "llama4", "youtu", "minicpm5")

TABLE: dict[str, PreTokenizer] = {
    name: replace(row, normal_form="NFC" if name in _NFC else None, ignore_merges=name in _WHOLE_WORDS, add_bos=name in _BOS)
    for name, row in _ROWS.items()
}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The row of that name; raises NotSupported, naming the known ones, for any other and for none."""
    if name is None:
        raise NotSupported(
            "the file has no tokenizer.ggml.pre: it was converted by a tool too old to say how text is cut into words, and "
            "guessing would give wrong tokens; convert or fetch the model again"
        )
    if name not in TABLE:
        raise NotSupported(f"tokenizer.ggml.pre {name!r} is not supported yet; known are: {', '.join(sorted(TABLE))}")
    return TABLE[name]
