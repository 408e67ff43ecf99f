"""The vocabulary of a model file, read from its metadata and checked. Keys and token types are GGUF's.

Source: the GGUF specification, section "Tokenizer" (ggml/docs/gguf.md).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tuili.errors import ModelFileError, NotSupported

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
TOKEN_TYPES = [0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE]

#: Markers of a turn: control tokens whatever type the file gives them, or a user could type one.
TURN_MARKERS = frozenset(
    {
        "<|im_start|>",
        "<|im_end|>",
        "<|im_sep|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<|end|>",
        "<|start|>",
        "<|return|>",
        "<|call|>",
        "<|channel|>",
        "<|message|>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<|turn>",
        "<turn|>",
        "<|START_OF_TURN_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<|start_of_role|>",
        "<|end_of_role|>",
        "[gMASK]",
        "<sop>",
    }
)

#: Control tokens that end a turn or a text: generation stops at each, beside the ids that the file names.
END_MARKERS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|user|>",
        "<|observation|>",
        "<end_of_turn>",
        "<turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
        "<EOT>",
        "[EOT]",
        "<eos>",
        "</s>",
    }
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens and their types, indexed by id, and the ids of tokens. ``scores`` and ``merges`` are empty where the kind has none.

    ``kind``: tokenizer.ggml.model ("gpt2", "llama", "bert"). ``pre``: tokenizer.ggml.pre, None when the file has none.
    """

    kind: str
    pre: str | None
    tokens: Sequence[str]
    ids: Mapping[str, int]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    control: frozenset[int]
    user_defined: tuple[int, ...]
    unused: frozenset[int]
    unknown_token_id: int | None
    add_space_prefix: bool
    architecture: str

    def text_ids(self) -> dict[str, int]:
        """Ids of the tokens that text may become: control tokens stay out of the model, so that nothing but the search for
        control tokens can produce them."""
        ids = dict(self.ids)
        for i in self.control:
            ids.pop(self.tokens[i], None)
        return ids

    def digest(self) -> str:
        """sha256 (hex) of tokens, types and scores."""
        sha = hashlib.sha256("\0".join(self.tokens).encode("utf-8", "surrogatepass"))
        sha.update(np.asarray(self.types, np.int8).tobytes())
        sha.update(np.asarray(self.scores, np.float32).tobytes())
        return sha.hexdigest()


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Read and check ``tokenizer.ggml.*``. Raises NotSupported (what is missing) or ModelFileError (what contradicts)."""
    kind = _text(metadata, "tokenizer.ggml.model")
    if kind is None:
        raise NotSupported("the file has no tokenizer.ggml.model: it carries no tokenizer; convert the model with its tokenizer")
    tokens = _list(metadata, "tokenizer.ggml.tokens", str)
    if not tokens:
        raise NotSupported(
            "the file has no tokenizer.ggml.tokens: it carries no vocabulary; convert the model with its tokenizer"
        )
    types = _list(metadata, "tokenizer.ggml.token_type", int) or [NORMAL] * len(tokens)
    scores = _list(metadata, "tokenizer.ggml.scores", int, float)
    for name, values in (("token_type", types), ("scores", scores)):
        if values and len(values) != len(tokens):
            raise ModelFileError(
                f"tokenizer.ggml.{name} has {len(values)} entries for {len(tokens)} tokens; the file is damaged, fetch it again"
            )
    kinds = np.asarray(types, np.int64)
    if not np.isin(kinds, TOKEN_TYPES).all():
        raise ModelFileError(f"tokenizer.ggml.token_type holds {max(types)}; known types are 0 to 6")
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    markers = {ids[token] for token in TURN_MARKERS if token in ids}
    control = frozenset(i for i in markers.union(np.flatnonzero(kinds == CONTROL).tolist()) if tokens[i])
    user_defined: list[int] = np.flatnonzero(kinds == USER_DEFINED).tolist()
    space_prefix = metadata.get("tokenizer.ggml.add_space_prefix")
    return Vocabulary(
        kind=kind,
        pre=_text(metadata, "tokenizer.ggml.pre"),
        tokens=tokens,
        ids=ids,
        types=types,
        scores=scores,
        merges=_list(metadata, "tokenizer.ggml.merges", str),
        control=control,
        user_defined=tuple(i for i in user_defined if i not in control and tokens[i]),
        unused=frozenset(np.flatnonzero(kinds == UNUSED).tolist()),
        unknown_token_id=token_id(metadata, "unknown", len(tokens)),
        add_space_prefix=kind != "gpt2" and (space_prefix is None or bool(space_prefix)),
        architecture=_text(metadata, "general.architecture") or "",
    )


def token_id(metadata: Mapping[str, Any], name: str, vocab_size: int) -> int | None:
    """``tokenizer.ggml.<name>_token_id``, None when absent; raises ModelFileError when it is not an id of the vocabulary."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None or value == 0xFFFFFFFF:  # some converters write the "no token" of a uint32
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise ModelFileError(f"{key} is {value!r}; token ids of this file are 0 to {vocab_size - 1}")
    return value


def end_token_ids(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> frozenset[int]:
    """Ids that end a generation: those the file names, and control tokens known to end a turn."""
    size = len(vocabulary.tokens)
    named = (token_id(metadata, name, size) for name in ("eos", "eot", "eom"))
    ends = {i for i in named if i is not None}
    marked = {vocabulary.tokens[i]: i for i in vocabulary.control if vocabulary.tokens[i] in END_MARKERS}
    if "<|return|>" in marked and "<|call|>" in marked:
        marked.pop("<|end|>", None)  # the Harmony format of gpt-oss: <|end|> closes a message, the turn goes on
    if "<|observation|>" not in marked:
        marked.pop("<|user|>", None)  # only GLM ends its turn by opening the user's
    return frozenset(ends | set(marked.values()))


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise ModelFileError(f"{key} is a {type(value).__name__}; it has to be text")
    return value


def _list(metadata: Mapping[str, Any], key: str, *types: type) -> list[Any]:
    value = metadata.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not set(map(type, cast(list[Any], value))) <= set(types):
        raise ModelFileError(f"{key} has to be a list of {types[0].__name__}; the file is damaged, fetch it again")
    return cast(list[Any], value)
