"""Vocabularies and chat templates of models that are not here, as a llama.cpp source tree carries them for its own tests."""

import copy
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from support import llama_cpp
from tuili.errors import NotSupported, TemplateRefused
from tuili.text.chat import ChatTemplate
from tuili.text.tokenizer.load import load_tokenizer
from tuili.weights.gguf import open_gguf

VOCABULARIES = llama_cpp.files("ggml-vocab-*.gguf.inp")
TEMPLATES = llama_cpp.files("templates/*.jinja")
pytestmark = [pytest.mark.real, pytest.mark.skipif(not TEMPLATES, reason="TUILI_TEST_LLAMA_CPP names no llama.cpp source tree")]


@pytest.mark.slow
@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.name)
def test_ids_are_the_expected_ones(path: Path) -> None:
    source = open_gguf(path.with_suffix(""))
    try:
        tokenizer = load_tokenizer(source.metadata)
    except NotSupported as refused:
        pytest.skip(str(refused))
    texts = path.read_text().split("\n__ggml_vocab_test__\n")
    expected = [[int(number) for number in line.split()] for line in path.with_suffix(".out").read_text().splitlines()]
    assert len(texts) >= 40
    for text, ids in zip(texts, expected, strict=False):
        # llama.cpp leaves text as it is where Qwen's own tokenizer composes it first
        if unicodedata.is_normalized("NFC", text):
            assert tokenizer.encode(text, add_bos=False, parse_control=False) == ids, text


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris", "n": 2}}}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "plain": ([{"role": "user", "content": "Hi"}], None),
    "system": (
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": " Hi\n"},
            {"role": "assistant", "content": "<think>hm</think>Hello!"},
            {"role": "user", "content": "Bye <b>é漢</b>"},
        ],
        None,
    ),
    "tools": (
        [
            {"role": "user", "content": "Weather in Paris?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "22C"},
            {"role": "assistant", "content": "22C."},
            {"role": "user", "content": "thanks"},
        ],
        [WEATHER],
    ),
}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_templates_render_as_in_transformers(path: Path) -> None:
    """What transformers renders we render alike; what its template refuses we refuse, or render with arguments as text."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source = path.read_text()
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    for messages, tools in CONVERSATIONS.values():
        try:
            (theirs,), _ = utils.render_jinja_template(
                [copy.deepcopy(messages)],
                tools=tools,
                chat_template=source,
                add_generation_prompt=True,
                bos_token="<s>",
                eos_token="</s>",
            )
        except Exception as refused:
            if tools is None or not isinstance(refused, TypeError):
                with pytest.raises(TemplateRefused):
                    template.render(messages, tools=tools)
            continue
        assert "".join(segment.text for segment in template.render(messages, tools=tools)) == theirs
