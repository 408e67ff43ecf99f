"""Every pre-tokenizer against Python's ``regex`` module, an independent engine, and in linear time."""

import pytest
import regex
from tokenizers import Regex, pre_tokenizers

from support import texts, vocabularies
from tuili.errors import NotSupported
from tuili.text.tokenizer.load import load_tokenizer
from tuili.text.tokenizer.pretokenize import TABLE, pre_tokenizer

ONE_OF_EACH = sorted({row.patterns: name for name, row in TABLE.items()}.values())


def cut(pieces: list[str], pattern: regex.Pattern[str]) -> list[str]:
    """Split each piece into matches and what is between them."""
    out: list[str] = []
    for piece in pieces:
        position = 0
        for match in pattern.finditer(piece):
            if match.end() > match.start():
                out += [piece[position : match.start()], match.group()]
                position = match.end()
        out.append(piece[position:])
    return [piece for piece in out if piece]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_words_are_those_of_another_engine(name: str) -> None:
    rows = TABLE[name].patterns
    ours = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rows])
    # Oniguruma's $ matches at line ends; the flag V1 has class intersection.
    theirs = [regex.compile(pattern, regex.V1 | regex.MULTILINE) for pattern in rows]
    for text in texts.gibberish(seed=1, count=300):
        expected = [text]
        for pattern in theirs:
            expected = cut(expected, pattern)
        assert [word for word, _ in ours.pre_tokenize_str(text)] == expected, text


RUNS = {"Z": 131_072, " ": 100_000, "\n": 100_000, "あ": 50_000, "👍🏽": 20_000, "1": 131_072, "'": 100_000, " \t": 50_000}


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_long_runs_are_cut_in_linear_time(name: str) -> None:
    """D-TOK-4: quadratic work on these lengths runs into the time limit of the test."""
    ours = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in TABLE[name].patterns])
    for unit, times in RUNS.items():
        for end in ("", "你"):
            words = ours.pre_tokenize_str(unit * times + end)
            assert sum(len(word) for word, _ in words) == len(unit) * times + len(end)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """D-GGUF-2."""
    with pytest.raises(NotSupported, match=r"'mystery' is not supported yet; known are: .*llama-bpe.*qwen2"):
        pre_tokenizer("mystery")


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_text_survives_with_every_pre_tokenizer(name: str) -> None:
    tokenizer = load_tokenizer(vocabularies.byte_level(name))
    for text in texts.gibberish(seed=2, count=20):
        if TABLE[name].normal_form is None:
            assert tokenizer.decode(tokenizer.encode(text)) == text
