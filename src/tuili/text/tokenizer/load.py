"""Build a tokenizer from the metadata of a model file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuili.errors import ModelFileError, NotSupported
from tuili.text.tokenizer import bpe, spm, wordpiece
from tuili.text.tokenizer.base import Special, Tokenizer
from tuili.text.tokenizer.pretokenize import pre_tokenizer
from tuili.text.tokenizer.vocabulary import Vocabulary, end_token_ids, read_vocabulary, token_id

KINDS = {"bert": wordpiece, "gpt2": bpe, "llama": spm}


def load_tokenizer(metadata: Mapping[str, Any], cache_dir: Path | None = None) -> Tokenizer:
    """The tokenizer of a GGUF file, from its ``tokenizer.*`` keys.

    ``cache_dir``, made when missing, keeps what takes longer to compute than to read: the merges of large "llama" vocabularies.
    (The tokenizers library reads a whole tokenizer no faster than it builds one.)

    Raises NotSupported (an unknown kind or pre-tokenizer, a missing key) or ModelFileError (keys that contradict each other).
    """
    vocabulary = read_vocabulary(metadata)
    family = KINDS.get(vocabulary.kind)
    if family is None:
        raise NotSupported(
            f"tokenizer.ggml.model {vocabulary.kind!r} is not supported yet; known are: {', '.join(sorted(KINDS))}"
        )
    model = family.build(vocabulary, cache_dir)
    return Tokenizer(
        replace(vocabulary, ids={}, merges=[], scores=[]),  # megabytes that only building needed
        model,
        _special(metadata, vocabulary),
        add_bos=_add_bos(metadata, vocabulary),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", vocabulary.kind == "bert")),
        chat_templates=_chat_templates(metadata),
        bytes_of_token=family.token_bytes,
    )


def _special(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Special:
    size = len(vocabulary.tokens)
    encoder = vocabulary.kind == "bert"
    # Phi-3's own tokenizer declares its turn markers with rstrip; GGUF has no key for that.
    strips = vocabulary.kind == "llama" and vocabulary.architecture == "phi3"
    return Special(
        bos_token_id=token_id(metadata, "cls" if encoder else "bos", size),
        eos_token_id=token_id(metadata, "seperator" if encoder else "eos", size),  # GGUF's spelling
        end_token_ids=end_token_ids(metadata, vocabulary),
        padding_token_id=token_id(metadata, "padding", size),
        strip_after=frozenset(
            i for i in vocabulary.control if strips and vocabulary.tokens[i] not in ("<unk>", "<s>", "<|endoftext|>")
        ),
    )


def _add_bos(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> bool:
    stated = metadata.get("tokenizer.ggml.add_bos_token")
    if stated is not None:
        return bool(stated)
    return pre_tokenizer(vocabulary.pre).add_bos if vocabulary.kind == "gpt2" else True


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """``tokenizer.chat_template`` as "default", ``tokenizer.chat_template.NAME`` as NAME."""
    key = "tokenizer.chat_template"
    found = {"default" if name == key else name[len(key) + 1 :]: text for name, text in metadata.items() if _is_template(name)}
    for name, text in found.items():
        if not isinstance(text, str):
            raise ModelFileError(f"{key} {name!r} is a {type(text).__name__}; it has to be text")
    return found


def _is_template(key: str) -> bool:
    return key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template.")
