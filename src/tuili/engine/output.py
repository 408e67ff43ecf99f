"""From token ids to what a client reads: text, stop strings, log-probabilities, usage. Runs beside the engine's thread, while the
next step is computed."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tuili.engine.request import RawLogprob, SequenceEvent, StepOutputs
from tuili.observe.metrics import EngineMetrics
from tuili.text.detokenize import Detokenizer
from tuili.text.stop import StopMatcher
from tuili.text.tokenizer.base import Tokenizer
from tuili.types import FinishReason, GenerateRequest, RequestOutput, SequenceDelta, TokenLogprob, Usage

#: A request of several sequences ends with the gravest of their reasons.
_GRAVITY: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")


@dataclass(slots=True)
class _Sequence:
    index: int
    detokenizer: Detokenizer
    stops: StopMatcher | None
    num_tokens: int = 0
    last_token_at: float = 0.0
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class _Request:
    source: GenerateRequest
    sequences: list[_Sequence]
    num_unfinished: int
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    has_output: bool = False
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error: str | None = None
    deltas: list[SequenceDelta] = field(default_factory=list[SequenceDelta])


class OutputProcessor:
    """Keeps the text side of every live request. Not thread-safe: one thread calls it."""

    def __init__(self, tokenizer: Tokenizer, metrics: EngineMetrics) -> None:
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._requests: dict[str, _Request] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: GenerateRequest) -> None:
        params = request.params
        sequences = [
            _Sequence(
                index,
                Detokenizer(self._tokenizer, params.skip_special_tokens),
                StopMatcher(params.stop, params.include_stop_str_in_output) if params.stop else None,
            )
            for index in range(params.n)
        ]
        self._requests[request.request_id] = _Request(request, sequences, params.n)
        self._metrics.requests_accepted += 1

    def process(self, step: StepOutputs) -> tuple[list[RequestOutput], list[tuple[str, int]]]:
        """One output for each request that gained something, and the sequences that a stop string has ended: the engine does
        not know that yet."""
        stopped: list[tuple[str, int]] = []
        for request_id, at, num_cached_tokens in step.started:
            if request := self._requests.get(request_id):
                request.num_cached_tokens = num_cached_tokens
                self._metrics.request_queue_time.observe(max(at - request.source.arrival, 0.0))
                self._metrics.prefix_cache_queries += len(request.source.prompt_token_ids)
                self._metrics.prefix_cache_hits += num_cached_tokens
        for request_id, entries in step.prompt_logprobs:
            if request := self._requests.get(request_id):
                request.prompt_logprobs = tuple(entry and self._token_logprob(*entry) for entry in entries)
        touched: list[_Request] = []
        for event in step.events:
            request = self._requests.get(event.request_id)
            if request is None or request.sequences[event.sequence].finish_reason is not None:
                continue  # aborted, or ended by a stop string, while the step was under way
            if not request.deltas:
                touched.append(request)
            request.deltas.append(self._advance(request, event, step.now, stopped))
        return [self._emit(request, step.now) for request in touched], stopped

    def end(self, request_id: str, reason: FinishReason, now: float, error: str | None = None) -> RequestOutput | None:
        """End what is left of a request from this side; None when it has ended already."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        request.error = error
        for sequence in request.sequences:
            if sequence.finish_reason is None:
                sequence.finish_reason = reason
                request.num_unfinished -= 1
                request.deltas.append(SequenceDelta(sequence.index, "", (), finish_reason=reason))
        return self._emit(request, now)

    def request_ids(self) -> Iterable[str]:
        return list(self._requests)

    def _advance(self, request: _Request, event: SequenceEvent, now: float, stopped: list[tuple[str, int]]) -> SequenceDelta:
        sequence = request.sequences[event.sequence]
        reason: FinishReason | None = event.finish_reason
        stop_reason: str | int | None = event.stop_reason
        token_ids = (event.token_id,) if event.token_id >= 0 else ()
        text = ""
        if token_ids:
            self._count_token(request, sequence, now)
            # The token that ends a sequence is no text, unless it was asked for.
            if reason != "stop" or request.source.params.include_stop_str_in_output:
                text = sequence.detokenizer.push(event.token_id)
        if reason is not None:
            text += sequence.detokenizer.flush()
        if sequence.stops is not None and sequence.num_tokens >= request.source.params.min_tokens:
            text, matched = sequence.stops.push(text)
            if matched is not None:
                if reason is None:
                    stopped.append((event.request_id, event.sequence))
                reason, stop_reason = "stop", matched
            elif reason is not None:
                text += sequence.stops.flush()
        if reason is not None:
            sequence.finish_reason = reason
            request.num_unfinished -= 1
            request.error = event.error or request.error
        logprobs = () if event.logprob is None else (self._token_logprob(event.token_id, event.logprob),)
        return SequenceDelta(event.sequence, text, token_ids, logprobs, reason, stop_reason)

    def _token_logprob(self, token_id: int, raw: RawLogprob) -> TokenLogprob:
        """Alternatives that only pad the logits have no text and are left out."""
        pairs = zip(raw.top_ids, raw.top_logprobs, strict=True)
        size = self._tokenizer.vocab_size
        return TokenLogprob(token_id, raw.logprob, tuple((top_id, value) for top_id, value in pairs if 0 <= top_id < size))

    def _count_token(self, request: _Request, sequence: _Sequence, now: float) -> None:
        metrics = self._metrics
        metrics.generation_tokens += 1
        request.num_completion_tokens += 1
        sequence.num_tokens += 1
        if sequence.num_tokens > 1:
            metrics.inter_token_latency.observe(now - sequence.last_token_at)
        elif request.num_completion_tokens == 1:
            metrics.time_to_first_token.observe(max(now - request.source.arrival, 0.0))
        sequence.last_token_at = now

    def _emit(self, request: _Request, now: float) -> RequestOutput:
        source = request.source
        prompt_logprobs = None
        if not request.has_output:
            request.has_output = True
            prompt_logprobs = request.prompt_logprobs
            if not {"abort", "error"} & {delta.finish_reason for delta in request.deltas}:
                self._metrics.prompt_tokens += len(source.prompt_token_ids)
        output = RequestOutput(
            source.request_id,
            tuple(request.deltas),
            Usage(len(source.prompt_token_ids), request.num_completion_tokens, request.num_cached_tokens),
            request.num_unfinished == 0,
            prompt_logprobs,
            request.error,
        )
        request.deltas = []
        if output.finished:
            self._finish(request, now)
        return output

    def _finish(self, request: _Request, now: float) -> None:
        del self._requests[request.source.request_id]
        reasons = {sequence.finish_reason for sequence in request.sequences}
        self._metrics.request_success[max((r for r in reasons if r), key=_GRAVITY.index)] += 1
        self._metrics.request_aborts += "abort" in reasons
        self._metrics.e2e_request_latency.observe(max(now - request.source.arrival, 0.0))


def merge(outputs: list[RequestOutput]) -> RequestOutput:
    """Several outputs of one request as one: a reader that was slow catches up in a single step. Each sequence has one delta
    then; a step may have given it several tokens."""
    last = outputs[-1]
    if len(outputs) == 1 and (len(last.deltas) == 1 or len({delta.index for delta in last.deltas}) == len(last.deltas)):
        return last
    merged: dict[int, SequenceDelta] = {}
    for delta in (delta for output in outputs for delta in output.deltas):
        before = merged.get(delta.index)
        merged[delta.index] = (
            delta
            if before is None
            else SequenceDelta(
                delta.index,
                before.text + delta.text,
                before.token_ids + delta.token_ids,
                before.logprobs + delta.logprobs,
                delta.finish_reason,
                delta.stop_reason,
            )
        )
    return RequestOutput(
        last.request_id,
        tuple(merged.values()),
        last.usage,
        last.finished,
        outputs[0].prompt_logprobs,
        last.error,
    )
