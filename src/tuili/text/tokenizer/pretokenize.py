"""How text is cut into words before BPE merges run: one row for each name of ``tokenizer.ggml.pre``.

The names are those that llama.cpp's converter writes (convert_hf_to_gguf.py, get_vocab_base_pre); the patterns are facts about
the models, as in each model's own tokenizer.json (named in ``source``), in Oniguruma syntax. Patterns of a row are applied one
after the other, each cutting what the one before left.
"""

from dataclasses import dataclass

from tuili.errors import NotSupported

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """``ignore_merges``: a word that is a token is taken whole. ``add_bos``: the default when the file has no add_bos_token."""

    patterns: tuple[str, ...]
    source: str
    normal_form: str | None = None
    ignore_merges: bool = False
    add_bos: bool = False


_SMOLLM = PreTokenizer((r"\p{N}", GPT2), "HuggingFaceTB/SmolLM2-135M-Instruct tokenizer.json")
_QWEN2 = PreTokenizer((QWEN2,), "Qwen/Qwen2.5-0.5B-Instruct tokenizer.json", normal_form="NFC")

TABLE: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer((GPT2,), "openai-community/gpt2 tokenizer.json"),
    "smollm": _SMOLLM,
    "qwen2": _QWEN2,
    "llama-bpe": PreTokenizer((CL100K,), "meta-llama/Meta-Llama-3-8B tokenizer.json", ignore_merges=True, add_bos=True),
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
