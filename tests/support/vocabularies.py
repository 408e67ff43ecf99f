"""Small vocabularies in GGUF metadata form, made here: byte-level BPE and SentencePiece style."""

from typing import Any

from tuili.text.tokenizer.bpe import byte_of
from tuili.text.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

CHATML = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

WORDS = ["the", "sky", "is", "hello", "system", "user", "assistant", "world", "Hello"]


def byte_level(pre: str = "smollm", **more: Any) -> dict[str, Any]:
    """256 bytes, a few words with and without a leading space, ChatML's markers, one user-defined and one unused token."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(byte_of())
    merged: list[str] = []
    merges: list[str] = []
    for word in WORDS:
        for n in range(2, len(word) + 1):
            if word[:n] not in merged:
                merged.append(word[:n])
                merges.append(f"{word[: n - 1]} {word[n - 1]}")
    for left, right in [*(("Ġ", word) for word in WORDS), ("Ċ", "Ċ"), ("Ġ", "Ġ")]:
        merged.append(left + right)
        merges.append(f"{left} {right}")
    tokens = [*control, *letters, *merged, "<tool_call>", "[PAD0]"]
    types = [CONTROL] * 3 + [NORMAL] * (len(letters) + len(merged)) + [USER_DEFINED, UNUSED]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    } | more


def sentencepiece(**more: Any) -> dict[str, Any]:
    """Three control tokens, an unknown one, 256 byte tokens, ASCII letters, a few words, and turn markers as Gemma has them."""
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    raw_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = ["▁", "é", *(chr(code) for code in range(33, 127))]
    pieces: list[str] = []
    for word in [*WORDS, *("▁" + word for word in WORDS), "▁▁", "▁▁▁▁"]:
        pieces += [word[:n] for n in range(2, len(word) + 1) if word[:n] not in pieces]
    tokens = [*control, *raw_bytes, *letters, *pieces, "\n\n", "\n"]
    types = (
        [CONTROL] * 3 + [UNKNOWN] + [CONTROL] * 2 + [BYTE] * 256 + [NORMAL] * (len(letters) + len(pieces)) + [USER_DEFINED] * 2
    )
    scores = [-1000.0] * (len(control) + 256 + len(letters)) + [-float(n) for n in range(len(pieces))] + [-1000.0] * 2
    return {
        "general.architecture": "gemma3",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    } | more
