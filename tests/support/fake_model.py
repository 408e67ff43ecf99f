"""An engine around the fake backend, with a small real tokenizer: no model file, no compiler.

    loaded = fake_engine(script="Hello", max_num_seqs=4, num_blocks=(20,))

The tokenizer is byte-level BPE: every byte is a token (id = its place among the 256 byte tokens), a few merges, and the control
tokens of ChatML.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tuili.backends.base import Limits
from tuili.backends.fake import FakeBackend, FakeExecutable
from tuili.config.options import SpeculativeConfig
from tuili.config.resolve import ResolvedOptions
from tuili.engine.build import LoadedEngine, assemble
from tuili.program.program import BLOCK_SIZE, Program, Rows, StateDecl, Value
from tuili.text.tokenizer.base import Tokenizer
from tuili.text.tokenizer.load import load_tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = ("he", "ll", "th", "Ġt", "Ġa", "in", "er", "hell", "hello", "Ġth")
_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _byte_tokens() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def tokenizer_metadata(chat_template: str | None = CHAT_TEMPLATE) -> dict[str, object]:
    """Metadata as a GGUF file would have it; ids 0 to 255 are the bytes."""
    tokens = [*_byte_tokens(), *_WORDS, *_CONTROL]
    first_control = 256 + len(_WORDS)
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * first_control + [3] * len(_CONTROL),
        "tokenizer.ggml.merges": ["h e", "l l", "t h", "Ġ t", "Ġ a", "i n", "e r", "he ll", "hell o", "Ġ th"],
        "tokenizer.ggml.eos_token_id": first_control + 2,
        "tokenizer.ggml.bos_token_id": first_control,
        "tokenizer.ggml.add_bos_token": False,
    }
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = chat_template
    return metadata


def small_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    return load_tokenizer(tokenizer_metadata(chat_template))


def fake_program(vocab_size: int, windows: Sequence[int | None] = (None,)) -> Program:
    """A program without instructions; one state for each entry of ``windows`` (None: a full one)."""
    states = tuple(
        StateDecl(f"layer{i}", "full" if window is None else "window", 1, 16, window) for i, window in enumerate(windows)
    )
    return Program("fake", (), {}, states, Value(0, Rows("R"), vocab_size))


@dataclass(frozen=True)
class FakeSetup:
    """How to build the engine. ``padding``: logits wider than the vocabulary. ``num_blocks``: a number for every state group."""

    script: str | Sequence[int] = ()
    max_model_len: int = 512
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_waiting_requests: int = 100
    num_blocks: Sequence[int] = (256,)
    windows: Sequence[int | None] = (None,)
    padding: int = 3
    seconds_per_step: float = 0.0
    failing_token: int | None = None
    failing_steps: frozenset[int] = frozenset()
    nan_token: int | None = None
    chat_template: str | None = CHAT_TEMPLATE
    tokenizer: Tokenizer | None = field(default=None)
    enable_prefix_caching: bool = True
    speculative_config: SpeculativeConfig | None = None


def fake_engine(setup: FakeSetup | None = None, **changes: object) -> LoadedEngine:
    """A LoadedEngine on the fake backend; keyword arguments are FakeSetup's fields."""
    setup = setup or FakeSetup(**changes)  # type: ignore[arg-type]
    tokenizer = setup.tokenizer or small_tokenizer(setup.chat_template)
    script = tokenizer.encode(setup.script) if isinstance(setup.script, str) else list(setup.script)
    if isinstance(setup.script, str) and setup.script:
        script.append(min(tokenizer.eos_token_ids))
    backend = FakeBackend(
        script=tuple(script),
        seconds_per_step=setup.seconds_per_step,
        failing_token=setup.failing_token,
        failing_steps=setup.failing_steps,
        nan_token=setup.nan_token,
    )
    program = fake_program(tokenizer.vocab_size + setup.padding, setup.windows)
    limits = Limits(setup.max_model_len, setup.max_num_seqs, setup.max_num_batched_tokens, tuple(setup.num_blocks))
    executable: FakeExecutable = backend.load(program, {}, limits)
    resolved = ResolvedOptions(
        threads=1,
        max_model_len=setup.max_model_len,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        kv_cache_memory_bytes=sum(setup.num_blocks) * BLOCK_SIZE,
        max_waiting_requests=setup.max_waiting_requests,
        reasons=(),
        enable_prefix_caching=setup.enable_prefix_caching,
        speculative_config=setup.speculative_config,
    )
    return assemble(executable, program, limits, resolved, tokenizer)
