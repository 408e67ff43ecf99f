"""Random texts that tokenizers stumble over."""

import random

ALPHABET = [
    *"abzABZ019 \t\n\r.,!?'\"-_/\\|<>()[]{}$+=^~`#@%&*;:",
    *"éßÀǅΣжЯשلअक्あア漢字가ㄱ한٣½Ⅻ²َ́​  　…。，、।🦜👍🏽‍️ﬁ𐐀",
    "'s", "'T", "'Ll", "\r\n", "\n\n", "   ", "  ", "12345", "hello", "World", "IT'S", " ", " ", " ",
]  # fmt: skip

WORDS = [
    *["the", "of", "and", "model", "Paris", "France", "capital", "2024", "3.14", "naïve", "café", "Übung", "World", "e\u0301"],
    *["def", "return", "self", "import", "for", "in", "range", "if", "not", "None", "class", "lambda", "x", "i", "0xFF"],
    *["+=", "==", "(", ")", ":", "[", "]", "{", "}", "->", '"', "'", "#", "//", "/*", "*/"],
    *["Привет", "мир", "你好", "世界", "東京", "안녕", "नमस्ते", "مرحبا", "שלום", "ไทย", "🙂", "👩\u200d👩\u200d👧"],
]


def gibberish(seed: int, count: int, length: int = 40) -> list[str]:
    """Characters of every class, in any order."""
    rng = random.Random(seed)
    return ["".join(rng.choices(ALPHABET, k=rng.randint(1, length))) for _ in range(count)]


def prose(seed: int, count: int, length: int = 40) -> list[str]:
    """Words and code of many scripts, with the white space of real text."""
    rng = random.Random(seed)
    spaces = [" "] * 12 + ["  ", "    ", "\n", "\n\n", "\n    ", "\t", "", "", ", ", ". ", " \n", "\r\n"]
    return ["".join(rng.choice(WORDS) + rng.choice(spaces) for _ in range(rng.randint(1, length))) for _ in range(count)]


def runs(seed: int, count: int) -> list[str]:
    """Repeated characters and words."""
    rng = random.Random(seed)
    return [
        "".join(rng.choice([*"aZ =-\n\t.あ👍", "ab", "us", "the "]) * rng.randint(1, 30) for _ in range(rng.randint(1, 5)))
        for _ in range(count)
    ]
