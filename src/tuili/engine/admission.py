"""What a request may ask for, checked before it is queued: a refusal comes at once and says both numbers."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from tuili.cache.radix import namespace
from tuili.engine import policy
from tuili.engine.request import Request
from tuili.errors import ContextTooLong, InvalidRequest
from tuili.text.grammar.compiler import Grammar
from tuili.types import GenerateRequest


@dataclass(frozen=True, slots=True)
class RequestChecker:
    """``max_model_len``: the context. ``kv_capacity``: tokens that the whole KV cache can hold for one sequence. ``num_tokens``:
    ids the tokenizer knows; logits may be wider, and what lies beyond is padding that is neither accepted nor sampled."""

    max_model_len: int
    kv_capacity: int
    num_tokens: int
    eos_token_ids: frozenset[int]

    @property
    def max_sequence_tokens(self) -> int:
        return min(self.max_model_len, self.kv_capacity)

    def check(self, request: GenerateRequest, number: int, grammar: Grammar | None = None) -> Request:
        """The engine's form of ``request``; ``number`` counts submissions; ``grammar``: its structured output, compiled.

        Raises ContextTooLong, or InvalidRequest naming the field. An unseeded request gets a random seed here.
        """
        params = request.params
        assert (params.structured_outputs is None) == (grammar is None)
        self._check_ids("prompt", request.prompt_token_ids)
        self._check_ids("logit_bias", params.logit_bias)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        num_prompt = len(request.prompt_token_ids)
        self._check_length(num_prompt, wants_output=params.max_tokens != 0)
        longest = self.max_sequence_tokens
        # A grammar that is fulfilled lets nothing but the end follow.
        eos = frozenset[int]() if params.ignore_eos and grammar is None else self.eos_token_ids
        return Request(
            source=request,
            seed=secrets.randbits(64) if params.seed is None else params.seed % 2**64,
            stop_token_ids=eos | frozenset(params.stop_token_ids),
            max_tokens_total=longest if params.max_tokens is None else min(num_prompt + params.max_tokens, longest),
            key=policy.request_key(request.priority, request.arrival, number),
            grammar=grammar,
            namespace=namespace(tenant=request.tenant, cache_salt=request.cache_salt),
        )

    def _check_ids(self, field: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self.num_tokens:
                raise InvalidRequest(
                    f"{field} has token id {token_id}; this model's ids go from 0 to {self.num_tokens - 1}", field=field
                )

    def _check_length(self, num_prompt: int, *, wants_output: bool) -> None:
        if num_prompt == 0:
            raise InvalidRequest("the prompt is empty; give it at least one token", field="prompt")
        if num_prompt + wants_output <= self.max_sequence_tokens:
            return
        room = "" if num_prompt > self.max_sequence_tokens else ", which leaves no room for an answer"
        if self.kv_capacity < self.max_model_len:
            raise ContextTooLong(
                f"the prompt has {num_prompt} tokens; the KV cache holds {self.kv_capacity} for one request{room}. Shorten the "
                f"prompt, or start with a larger kv_cache_memory_bytes",
                field="prompt",
            )
        raise ContextTooLong(
            f"the prompt has {num_prompt} tokens; the context is {self.max_model_len}{room}. Shorten the prompt, or start with a "
            f"larger max_model_len if the model allows it",
            field="prompt",
        )
