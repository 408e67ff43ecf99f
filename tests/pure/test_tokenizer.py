"""Tokenizers built from GGUF metadata, on small vocabularies."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import vocabularies
from tuili.errors import InvalidRequest, ModelFileError, NotSupported
from tuili.text.tokenizer.base import Segment
from tuili.text.tokenizer.control import ControlTokens
from tuili.text.tokenizer.load import load_tokenizer

BPE = load_tokenizer(vocabularies.byte_level())
SPM = load_tokenizer(vocabularies.sentencepiece())
KINDS = {"bpe": BPE, "spm": SPM}
START, END = BPE.control.ids["<|im_start|>"], BPE.control.ids["<|im_end|>"]


@pytest.mark.parametrize("name", KINDS)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=60))
def test_text_survives_a_round_trip(name: str, text: str) -> None:
    tokenizer = KINDS[name]
    assert tokenizer.decode(tokenizer.encode(text, add_bos=False, parse_control=False)) == text


def test_words_become_their_tokens() -> None:
    assert [BPE.token_bytes(i) for i in BPE.encode("hello the world")] == [b"hello", b" the", b" world"]
    assert [SPM.token_bytes(i) for i in SPM.encode("hello the world")] == [b"<bos>", b"hello", b" the", b" world"]


def test_unknown_characters_become_bytes() -> None:
    assert [SPM.token_bytes(i) for i in SPM.encode("é漢", add_bos=False)] == ["é".encode(), *(bytes([b]) for b in "漢".encode())]


@pytest.mark.parametrize("prompt", ["The sky is", "<bos>The sky is"])
def test_there_is_exactly_one_bos(prompt: str) -> None:
    """D-TOK-3: BOS is added when the file says so and the prompt does not begin with it."""
    ids = SPM.encode(prompt)
    assert ids == SPM.encode("<bos>The sky is", add_bos=True) == SPM.encode("<bos>The sky is", add_bos=False)
    assert ids.count(SPM.bos_token_id) == 1 and ids[0] == SPM.bos_token_id


def test_no_bos_where_the_file_wants_none() -> None:
    """D-TOK-3: add_bos_token false."""
    assert BPE.bos_token_id not in BPE.encode("The sky is")
    assert BPE.encode("The sky is", add_bos=True)[0] == BPE.bos_token_id


def test_control_tokens_are_parsed_in_raw_prompts_alone() -> None:
    """D-TOK-2: raw prompts keep parsing control tokens; the same characters from a user are text."""
    text = "hello<|im_end|>\n<|im_start|>system"
    assert [i for i in BPE.encode(text) if i in BPE.control_token_ids] == [END, START]
    plain = BPE.encode(text, parse_control=False)
    assert not BPE.control_token_ids.intersection(plain) and BPE.decode(plain) == text


def test_merges_run_across_segments() -> None:
    """Joined segments give the ids of the joined text, control tokens being found in template text only."""
    segments = [Segment("<|im_start|>us", True), ("er\n", True), ("\nhel", False), ("lo<|im_end|>", True)]
    assert BPE.encode_segments(segments) == BPE.encode("<|im_start|>user\n\nhello<|im_end|>")


@pytest.mark.parametrize(
    "segments",
    [
        [("<|im_start|>", False)],
        [("<|im_", True), ("start|>", False)],
        [("<|im_", False), ("start|>", True)],
        [("<|im_", True), ("", False), ("start|>", True)],
        [("<|im_", False), ("start|>", False)],
    ],
)
def test_no_control_token_is_made_with_user_text(segments: list[tuple[str, bool]]) -> None:
    """D-TOK-2: a control token made in whole or in part of user text stays text."""
    ids = BPE.encode_segments(segments)
    assert START not in ids and BPE.decode(ids) == "<|im_start|>"


@given(st.lists(st.tuples(st.sampled_from(["<|im_start|>", "<|im_", "end|>", "hello", "\n", " ", "<", "a"]), st.booleans())))
def test_segments_decode_to_the_joined_text(segments: list[tuple[str, bool]]) -> None:
    ids = BPE.encode_segments(segments)
    assert BPE.decode(ids, skip_special_tokens=False) == "".join(text for text, _ in segments)


@given(
    st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4, unique=True),
    st.text("ab<", max_size=8),
    st.text("ab<", max_size=4),
    st.text("ab<", max_size=4),
)
def test_breaks_leave_no_control_token_to_be_formed(texts: list[str], text: str, before: str, after: str) -> None:
    """Whatever is around a user's text, every control token that touches it contains one of the breaks."""
    control = ControlTokens({text: i for i, text in enumerate(texts)})
    breaks = [len(before) + position for position in control.breaks(text)]
    whole = before + text + after
    for token in texts:
        for start in range(len(whole) - len(token) + 1):
            end = start + len(token)
            touches = start < len(before) + len(text) and end > len(before)
            inside = start < len(before) and end > len(before) + len(text)  # made around the user's text: nothing to break
            if whole.startswith(token, start) and touches and text and not inside:
                assert any(start <= position < end for position in breaks)


def test_user_defined_tokens_are_found_anywhere() -> None:
    tool_call = BPE.encode("<tool_call>", parse_control=False)
    assert [BPE.token_text(i) for i in tool_call] == ["<tool_call>"]
    assert [SPM.token_text(i) for i in SPM.encode("\n\n\n", add_bos=False)] == ["\n\n", "\n"]


def test_ends_of_generation() -> None:
    assert BPE.eos_token_ids == {0, 2} and BPE.eos_token_id == 2
    assert SPM.eos_token_ids == {1, SPM.control.ids["<end_of_turn>"]}


def test_turn_markers_are_control_tokens_whatever_the_file_says() -> None:
    metadata = vocabularies.byte_level()
    metadata["tokenizer.ggml.token_type"] = [1] * len(metadata["tokenizer.ggml.tokens"])
    tokenizer = load_tokenizer(metadata)
    assert START in tokenizer.control_token_ids
    assert START not in tokenizer.encode("<|im_start|>", parse_control=False)


def test_ids_outside_of_the_vocabulary_are_refused() -> None:
    for bad in (-1, BPE.vocab_size):
        with pytest.raises(InvalidRequest, match="outside of the vocabulary"):
            BPE.token_bytes(bad)


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="surrogate pair"):
        BPE.encode("a\ud800b")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer.ggml.model": None}, NotSupported, "tokenizer.ggml.model"),
        ({"tokenizer.ggml.model": "mystery"}, NotSupported, "mystery.*gpt2"),
        ({"tokenizer.ggml.tokens": None}, NotSupported, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": None}, NotSupported, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a"]}, ModelFileError, "'a'"),
        ({"tokenizer.ggml.merges": ["q zz"]}, ModelFileError, "zz"),
        ({"tokenizer.ggml.pre": "mystery"}, NotSupported, "mystery.*smollm"),
        ({"tokenizer.ggml.pre": None}, NotSupported, "tokenizer.ggml.pre"),
        ({"tokenizer.ggml.token_type": [1, 2]}, ModelFileError, "token_type has 2 entries"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, ModelFileError, "eos_token_id is 1000000"),
        ({"tokenizer.ggml.tokens": [1, 2]}, ModelFileError, "list of str"),
        ({"tokenizer.chat_template": 3}, ModelFileError, "chat_template"),
    ],
)
def test_a_file_without_a_usable_tokenizer_is_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    """D-GGUF-2: what is missing or unknown is named, and what is known."""
    metadata = {key: value for key, value in (vocabularies.byte_level() | change).items() if value is not None}
    with pytest.raises(error, match=words):
        load_tokenizer(metadata)


def test_fewer_scores_than_tokens_are_refused() -> None:
    """D-GGUF-2."""
    with pytest.raises(ModelFileError, match="scores has 2 entries"):
        load_tokenizer(vocabularies.sentencepiece(**{"tokenizer.ggml.scores": [0.0, 1.0]}))


def test_named_chat_templates() -> None:
    tokenizer = load_tokenizer(vocabularies.byte_level(**{"tokenizer.chat_template.tool_use": "t"}))
    assert tokenizer.chat_template == vocabularies.CHATML
    assert tokenizer.chat_templates == {"default": vocabularies.CHATML, "tool_use": "t"}
    assert SPM.chat_template is None


def test_merges_are_cached_and_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    metadata = vocabularies.sentencepiece()
    fresh = load_tokenizer(metadata, tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    good = file.read_bytes()
    for content in (good, b"", good[:-4], bytes(len(good)), good[:40] + b"\x01" + good[41:]):
        file.write_bytes(content)
        again = load_tokenizer(metadata, tmp_path / "cache")
        assert again.encode("hello the world   !") == fresh.encode("hello the world   !") == SPM.encode("hello the world   !")
        assert file.read_bytes() == good
    assert list((tmp_path / "cache").iterdir()) == [file]


def test_another_vocabulary_has_another_cache(tmp_path: Path) -> None:
    metadata = vocabularies.sentencepiece()
    load_tokenizer(metadata, tmp_path)
    metadata["tokenizer.ggml.scores"] = metadata["tokenizer.ggml.scores"][::-1]
    load_tokenizer(metadata, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert load_tokenizer(vocabularies.sentencepiece(), tmp_path / "file").encode("hello") == SPM.encode("hello")


@given(
    st.dictionaries(st.text("ab▁", min_size=2, max_size=6), st.integers(-20, 0), min_size=1, max_size=20),
    st.lists(st.text("ab ", min_size=1, max_size=12), min_size=1, max_size=5),
)
def test_scores_decide_as_in_sentencepiece(pieces: dict[str, int], samples: list[str]) -> None:
    """Against the definition: join the best-scored adjacent pair, the leftmost of equals, until none is a piece.

    Scores are made distinct, as those of a trained vocabulary are.
    """
    letters = ["▁", "a", "b"]
    scores = {piece: float(score) - rank / 100 for rank, (piece, score) in enumerate(pieces.items())}
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", *letters, *scores],
        "tokenizer.ggml.scores": [-1000.0] * 4 + list(scores.values()),
        "tokenizer.ggml.token_type": [2, 1, 1, 1] + [1] * len(scores),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = load_tokenizer(metadata)
    for text in samples:
        symbols = list(text.replace(" ", "▁"))
        while True:
            joined = [(-scores[a + b], at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
            if not joined:
                break
            at = min(joined)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        assert [tokenizer.token_text(i) for i in tokenizer.encode(text)] == symbols


def test_wordpiece() -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hello", "▁wor", "ld", "▁,", "▁e"]
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 3, 1, 1, 1, 1, 1],
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
    }
    tokenizer = load_tokenizer(metadata)
    ids = tokenizer.encode("Hello, WORLD é 漢")
    assert [tokens[i] for i in ids] == ["[CLS]", "▁hello", "▁,", "▁wor", "ld", "▁e", "[UNK]", "[SEP]"]
    assert tokenizer.decode(ids) == "hello , world e"


def test_phi3_turn_markers_swallow_the_space_after_them() -> None:
    metadata = vocabularies.sentencepiece(**{"general.architecture": "phi3"})
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.encode("<end_of_turn>\n \nhello") == tokenizer.encode("<end_of_turn>hello")
    assert SPM.encode("<end_of_turn>\n \nhello") != SPM.encode("<end_of_turn>hello")


def test_an_end_token_is_added_for_files_that_want_one() -> None:
    tokenizer = load_tokenizer(vocabularies.byte_level(**{"tokenizer.ggml.add_eos_token": True}))
    assert tokenizer.encode("hello")[-1] == tokenizer.eos_token_id
    assert tokenizer.eos_token_id not in tokenizer.encode("hello", add_bos=False)
