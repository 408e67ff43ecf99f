"""What structured output costs, and what jumping over forced tokens saves.

    python benchmarks/structured.py [--model qwen2.5-coder:0.5b] [--clients 16] [--tokens 64] [--rounds 5] [--json]

N sequences generate together, three ways in turn: free; held to a schema whose text never ends, every token asked of the model
(``logprobs``; the free ones ask for them too); and the same with jumps over forced tokens. Tokens a second of the whole call,
medians of the rounds, and the model's steps. A first round, which also compiles the grammar, does not count. Then one sequence
alone writes an object of long keys, both ways: its steps for each token.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import machine
from material import model_path
from tuili import LLM, SamplingParams, StructuredOutputs, __version__

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "languages": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 4},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "languages", "active"],
    "additionalProperties": False,
}
PEOPLE = StructuredOutputs(json={"type": "array", "items": PERSON, "minItems": 1000})
_KEYS = ("customer_identifier", "shipping_address_is_verified", "preferred_contact_language", "number_of_open_orders")
KEYS = StructuredOutputs(
    json={
        "type": "object",
        "properties": {key: {"type": "integer", "minimum": 0, "maximum": 99} for key in _KEYS},
        "required": list(_KEYS),
        "additionalProperties": False,
    }
)
#: Free, held to the schema, held to it with jumps: the form, and the log-probabilities asked for.
WAYS: dict[str, tuple[StructuredOutputs | None, int | None]] = {"free": (None, 0), "held": (PEOPLE, 0), "jumping": (PEOPLE, None)}


@dataclass(frozen=True)
class Pass:
    tokens: int
    steps: int
    seconds: float


class Counted:
    """A model whose engine counts its steps."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._steps = 0
        plain = llm.loaded.engine.step

        def step() -> Any:
            self._steps += 1
            return plain()

        llm.loaded.engine.step = step  # type: ignore[method-assign]

    def run(self, clients: int, form: StructuredOutputs | None, logprobs: int | None, tokens: int) -> Pass:
        params = [
            SamplingParams(
                temperature=0.8, seed=seed, max_tokens=tokens, ignore_eos=True, logprobs=logprobs, structured_outputs=form
            )
            for seed in range(clients)
        ]
        prompts = [f"The people of village number {i}, each with name, age and languages, as JSON:\n" for i in range(clients)]
        self._steps, start = 0, time.perf_counter()
        results = self._llm.generate(prompts, params)
        seconds = time.perf_counter() - start
        return Pass(sum(result.usage.completion_tokens for result in results), self._steps, seconds)


def measure(model: str, clients: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    with LLM(model_path(model), max_model_len=1024, max_num_seqs=clients, enable_prefix_caching=False) as llm:
        counted = Counted(llm)
        passes: dict[str, list[Pass]] = {name: [] for name in WAYS}
        for _ in range(rounds + 1):
            for name, (form, logprobs) in WAYS.items():
                passes[name].append(counted.run(clients, form, logprobs, tokens))
                assert passes[name][-1].tokens == clients * tokens, f"an answer ended early: {passes[name][-1]}"
        rates = {name: statistics.median(p.tokens / p.seconds for p in done[1:]) for name, done in passes.items()}
        rows: list[dict[str, Any]] = [
            {
                "model": model,
                "test": f"{name}{clients}",
                "rate": round(rates[name], 1),
                "of free": round(statistics.median(free.seconds / p.seconds for free, p in pairs), 3),
                "steps": done[-1].steps,
            }
            for name, done in passes.items()
            for pairs in [list(zip(passes["free"][1:], done[1:], strict=True))]
        ]
        for name, logprobs in (("keys held", 0), ("keys jumping", None)):
            done = counted.run(1, KEYS, logprobs, 200)
            rows.append({"model": model, "test": name, "steps": done.steps, "tokens": done.tokens})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder:0.5b")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")
    args = parser.parse_args()
    print(f"{machine.describe()}\ntuili {__version__}; {machine.probe()}", file=sys.stderr)
    for row in measure(args.model, args.clients, args.tokens, args.rounds):
        print(json.dumps(row) if args.json else ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
