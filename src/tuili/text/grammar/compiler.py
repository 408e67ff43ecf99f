"""From what a request asks for to a grammar that can be followed token by token.

llguidance is imported when the first grammar comes. Grammars come from outside: compiling runs in threads of its own, within
limits of size and time, and at most two at once, so that no grammar holds up anything but other grammars.
"""

import asyncio
import json
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING

from tuili.errors import InvalidRequest
from tuili.text.grammar.formats import with_strict_formats
from tuili.text.grammar.state import GrammarState, first_line
from tuili.text.tokenizer.base import Tokenizer
from tuili.types import GrammarSpec

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

SECONDS_TO_COMPILE = 5.0
MAX_COMPILES_AT_ONCE = 2
MAX_KEPT = 64
MAX_CHARACTERS = 4_000_000

#: Between JSON tokens: nothing, one blank, or a new line with its indent. Longer runs are where weak models get lost.
BLANKS = r"\n {0,12}| ?"

_JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": BLANKS, "lenient": False}


class Grammar:
    """A compiled grammar; every sequence starts with a state of its own."""

    def __init__(self, matcher: "LLMatcher", num_tokens: int) -> None:
        self._matcher = matcher
        self._num_words = -(-num_tokens // 32)
        self._copying = threading.Lock()

    def start(self) -> GrammarState:
        with self._copying:
            return GrammarState(self._matcher.deep_copy(), self._num_words)


class _Vocabulary:
    """A tokenizer as llguidance reads it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.control_token_ids | tokenizer.unused_token_ids)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_bos=False, parse_control=False)


class GrammarCompiler:
    """Compiles for one model's tokenizer, and keeps the last grammars. ``compile`` waits, ``compile_async`` does not block the
    event loop; both raise InvalidRequest, naming what cannot be used."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pool: ThreadPoolExecutor | None = None
        self._vocabulary: Future[LLTokenizer] | None = None
        self._lock = threading.Lock()
        self._kept: OrderedDict[GrammarSpec, Grammar] = OrderedDict()

    def compile(self, spec: GrammarSpec | None) -> Grammar | None:
        if spec is None:
            return None
        self._start().result()
        try:
            return self._submit(spec).result(SECONDS_TO_COMPILE)
        except FutureTimeout:
            raise _too_slow(spec) from None

    async def compile_async(self, spec: GrammarSpec | None) -> Grammar | None:
        if spec is None:
            return None
        await asyncio.wrap_future(self._start())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._submit(spec)), SECONDS_TO_COMPILE)
        except TimeoutError:
            raise _too_slow(spec) from None

    def _start(self) -> "Future[LLTokenizer]":
        """The vocabulary, which takes up to seconds to read, is read when the first grammar comes."""
        with self._lock:
            if self._vocabulary is None:
                self._pool = ThreadPoolExecutor(MAX_COMPILES_AT_ONCE, "tuili-grammar")
                self._vocabulary = self._pool.submit(_read_vocabulary, self._tokenizer)
            return self._vocabulary

    def _submit(self, spec: GrammarSpec) -> "Future[Grammar]":
        assert self._pool is not None
        return self._pool.submit(self._find_or_compile, spec)

    def _find_or_compile(self, spec: GrammarSpec) -> Grammar:
        with self._lock:
            if found := self._kept.get(spec):
                self._kept.move_to_end(spec)
                return found
        assert self._vocabulary is not None
        matcher = _matcher(spec, self._vocabulary.result())
        grammar = Grammar(matcher, self._tokenizer.vocab_size)
        with self._lock:
            self._kept[spec] = grammar
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return grammar

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _read_vocabulary(tokenizer: Tokenizer) -> "LLTokenizer":
    from llguidance import LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    if not tokenizer.eos_token_ids:
        raise InvalidRequest("this model names no end-of-sequence token, which structured output needs")
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer)), eos_token=sorted(tokenizer.eos_token_ids))


def _matcher(spec: GrammarSpec, vocabulary: "LLTokenizer") -> "LLMatcher":
    from llguidance import LLMatcher, LLParserLimits

    if len(spec.text) > MAX_CHARACTERS:
        raise _refused(spec, f"it has {len(spec.text)} characters; at most {MAX_CHARACTERS} are possible")
    try:
        text = _llguidance_text(spec)
    except (ValueError, RecursionError) as error:
        raise _refused(spec, str(error)) from None
    matcher = LLMatcher(vocabulary, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if not matcher.is_error():
        matcher.compute_bitmask()  # some limits are met only here; and what never begins shows
    if matcher.is_error():
        reason = first_line(matcher.get_error())
        raise _refused(spec, _UNMATCHABLE if reason.startswith("NoExtension") else reason)
    return matcher


def _llguidance_text(spec: GrammarSpec) -> str:
    """The grammar in llguidance's form. Raises ValueError."""
    from llguidance import LLMatcher

    match spec.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(with_strict_formats(_object_schema(spec.text)), overrides=_JSON_OPTIONS)  # type: ignore[arg-type]
        case "json_object":
            return LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=_JSON_OPTIONS)  # type: ignore[arg-type]
        case "regex":
            return LLMatcher.grammar_from_regex(spec.text)
        case "choice":
            alternatives = [json.dumps(choice, ensure_ascii=False) for choice in json.loads(spec.text)]
            return LLMatcher.grammar_from_lark("start: " + " | ".join(alternatives))
        case "grammar":
            return LLMatcher.grammar_from_lark(_lark(spec.text))


def _lark(text: str) -> str:
    """A GBNF grammar as Lark; Lark as it is. Raises ValueError."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(text)
    except Exception as error:  # the converter raises plain Exception for what it cannot read
        raise ValueError(str(error)) from None


def _object_schema(text: str) -> str:
    """The schemas ``true`` and ``false`` in their longer form, which llguidance wants."""
    return {"true": "{}", "false": '{"not": {}}'}.get(text.strip(), text)


_UNMATCHABLE = "nothing can match it; does a $ref or a rule lead back to itself, with no other way out?"


def _refused(spec: GrammarSpec, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"the {_NAMES[spec.kind]} cannot be used for structured output: {reason[:1000]}", field="structured_outputs"
    )


def _too_slow(spec: GrammarSpec) -> InvalidRequest:
    return _refused(spec, f"it was not compiled within {SECONDS_TO_COMPILE:g} seconds; make it smaller")


_NAMES = {
    "json_schema": "JSON schema",
    "json_object": "JSON object",
    "regex": "regular expression",
    "choice": "choice",
    "grammar": "grammar",
}
