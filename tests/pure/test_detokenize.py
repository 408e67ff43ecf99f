"""Incremental detokenisation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import vocabularies
from tuili.text.detokenize import Detokenizer
from tuili.text.tokenizer.base import Tokenizer
from tuili.text.tokenizer.load import load_tokenizer

BPE = load_tokenizer(vocabularies.byte_level())
SPM = load_tokenizer(vocabularies.sentencepiece())
SPM_PREFIX = load_tokenizer(vocabularies.sentencepiece(**{"tokenizer.ggml.add_space_prefix": True}))
ALL = {"bpe": BPE, "spm": SPM, "spm-prefix": SPM_PREFIX}


def stream(tokenizer: Tokenizer, ids: list[int], **how: Any) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **how)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def byte_id(byte: int) -> int:
    return next(i for i in range(3, 259) if BPE.token_bytes(i) == bytes([byte]))


@pytest.mark.parametrize("name", ALL)
def test_characters_spread_over_tokens_come_whole(name: str) -> None:
    """D-TOK-1: no chunk holds U+FFFD, and the joined chunks are the text."""
    text = "🦜漢字é"
    chunks = stream(ALL[name], ALL[name].encode(text, add_bos=False), at_start=True)
    assert "".join(chunks) == text
    assert not any("\ufffd" in chunk for chunk in chunks)
    assert "🦜" in chunks and "漢" in chunks


def test_a_tail_never_completed_becomes_one_replacement() -> None:
    """D-TOK-1: text before an incomplete tail is not lost, and the tail becomes one U+FFFD."""
    parrot = [byte_id(byte) for byte in "🦜".encode()]
    assert stream(BPE, [byte_id(ord("a")), *parrot[:3]]) == ["a", "", "", "", "\ufffd"]


def test_bytes_that_are_never_utf8_do_not_stall() -> None:
    """D-TOK-1: a lone 0xF0 followed by ASCII shows the ASCII at once."""
    assert stream(BPE, [byte_id(0xF0), byte_id(ord("a")), byte_id(ord("b"))]) == ["", "\ufffda", "b", ""]
    assert stream(BPE, [byte_id(0xFF), byte_id(ord("a"))]) == ["\ufffd", "a", ""]


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_joined_pushes_equal_the_decoded_whole(name: str, data: st.DataObject) -> None:
    tokenizer = ALL[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    skip = data.draw(st.booleans())
    chunks = stream(tokenizer, ids, skip_special_tokens=skip, at_start=True)
    assert "".join(chunks) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_continuation_keeps_its_first_space() -> None:
    """The space prefix is taken from the start of a text only, not from where a generation continues a prompt."""
    ids = SPM_PREFIX.encode("hello", add_bos=False)
    assert SPM_PREFIX.token_bytes(ids[0]) == b" hello"
    assert "".join(stream(SPM_PREFIX, ids)) == " hello"
    assert "".join(stream(SPM_PREFIX, ids, at_start=True)) == SPM_PREFIX.decode(ids) == "hello"


def test_control_and_unused_tokens_are_left_out_on_request() -> None:
    ids = [BPE.control.ids["<|im_start|>"], byte_id(ord("a")), BPE.vocab_size - 1]
    assert stream(BPE, ids) == ["", "a", "", ""]
    assert "".join(stream(BPE, ids, skip_special_tokens=False)) == "<|im_start|>a[PAD0]"
