"""The loop's body: schedule, run, record. Synchronous, in one thread, and ignorant of text."""

import logging
import time

from tuili.backends.base import StepResult
from tuili.engine.batch import Batch
from tuili.engine.request import (
    PromptLogprobs,
    RawLogprob,
    Request,
    Sequence,
    SequenceEvent,
    Started,
    Status,
    StepOutputs,
    StepPlan,
)
from tuili.engine.runner import Runner
from tuili.engine.scheduler import Scheduler
from tuili.errors import BackendError
from tuili.observe.profile import Profile

log = logging.getLogger(__name__)

#: Steps in a row in which not one sequence could be computed, even by itself, before the backend counts as broken.
MAX_FAILED_STEPS = 3

_NO_TOKEN = "no token could be sampled: the model's output is not a number, or every token is banned by this request's settings"


class Engine:
    """``add`` and ``abort`` between steps, ``step`` while there is work."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._requests: dict[str, Request] = {}
        self._failed_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self.scheduler.add(request)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one of its sequences, in whatever phase it is; unknown ones have ended already."""
        request = self._requests.get(request_id)
        if request is None:
            return
        for sequence in request.sequences if index is None else [request.sequences[index]]:
            self._finish(sequence)

    def abort_all(self) -> None:
        for request_id in list(self._requests):
            self.abort(request_id)

    def step(self) -> StepOutputs:
        """Compute the next step. Raises BackendError when the backend fails for everybody, again and again."""
        outputs = StepOutputs()
        plan = self.scheduler.schedule()
        if not plan:
            return outputs
        self._note_started(plan, outputs)
        try:
            batch, result = self._runner.run(plan)
        except Exception as error:
            self._run_apart(plan, outputs, error)
        else:
            self._failed_steps = 0
            self._record(plan, batch, result, outputs)
        outputs.now = time.monotonic()
        return outputs

    def profile(self) -> Profile | None:
        return self._runner.profile()

    def close(self) -> None:
        self._runner.close()

    def _note_started(self, plan: StepPlan, outputs: StepOutputs) -> None:
        for sequence in plan.admitted:
            request = sequence.request
            if request.first_scheduled is None:
                request.first_scheduled = time.monotonic()
                outputs.started.append(Started(request.request_id, request.first_scheduled, request.num_cached_tokens))

    def _run_apart(self, plan: StepPlan, outputs: StepOutputs, error: Exception) -> None:
        """A step failed: run it again, each sequence by itself, so that only the guilty end with an error.

        Nothing of the failed step was recorded and a step writes only its own tokens' K and V, so this is safe; and results do
        not depend on who shares a batch.
        """
        log.warning("a step of %d sequences failed (%s); running each by itself", len(plan.sequences), error)
        num_failed = 0
        for i, (sequence, num_tokens) in enumerate(zip(plan.sequences, plan.num_tokens, strict=True)):
            if sequence.status is Status.FINISHED:  # its request has just failed with another of its sequences
                continue
            admitted = [sequence] if sequence in plan.admitted else []
            alone = StepPlan([sequence], [num_tokens], admitted, {0: plan.drafts[i]} if i in plan.drafts else {})
            try:
                batch, result = self._runner.run(alone)
            except Exception as reason:
                log.exception("request %s failed", sequence.request.request_id)
                self._fail(sequence.request, f"the backend failed: {reason}", outputs)
                num_failed += 1
            else:
                self._record(alone, batch, result, outputs)
        self._failed_steps = self._failed_steps + 1 if num_failed == len(plan.sequences) else 0
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise BackendError(f"the backend failed {self._failed_steps} steps in a row; the last time: {error}") from error

    def _record(self, plan: StepPlan, batch: Batch, result: StepResult, outputs: StepOutputs) -> None:
        """Append tokens, collect log-probabilities, finish what has ended."""
        token_ids = result.token_ids.tolist()
        sampled = set(self.scheduler.update(plan))
        row = 0
        for i, sequence in enumerate(plan.sequences):
            if batch.num_prompt_rows is not None:
                end = row + batch.num_prompt_rows[i]
                self._record_prompt(sequence, range(row, end), result, outputs)
                row = end
            if i in sampled:
                guesses = plan.drafts.get(i, [])
                if sequence.status is not Status.FINISHED:
                    self._record_tokens(sequence, guesses, row, token_ids, result, outputs)
                row += 1 + len(guesses)

    def _record_prompt(self, sequence: Sequence, rows: range, result: StepResult, outputs: StepOutputs) -> None:
        request = sequence.request
        known = request.prompt_logprobs
        num_top = request.source.params.prompt_logprobs or 0
        for row in rows:
            if result.token_ids[row] < 0:
                self._fail(request, _NO_TOKEN, outputs)
                return
            assert known is not None
            known.append((sequence.token_ids[len(known)], _raw_logprob(result, row, num_top)))

    def _record_tokens(
        self,
        sequence: Sequence,
        guesses: list[int],
        row: int,
        token_ids: list[int],
        result: StepResult,
        outputs: StepOutputs,
    ) -> None:
        """The token after the known ones; and while what came was guessed right, the next, whose row saw those guesses."""
        start, num_right, new = len(sequence.token_ids), 0, list[int]()
        while new == guesses[num_right - len(new) : num_right]:
            self._record_token(sequence, token_ids[row + num_right], row + num_right, result, outputs)
            self._jump_ahead(sequence, outputs)
            if sequence.status is Status.FINISHED:
                return
            new = sequence.token_ids[start + num_right :]
            num_right += len(new)
        if guesses:
            known = sequence.token_ids[start:]
            num_right = next(i for i, token in enumerate(known) if i == len(guesses) or token != guesses[i])
            self.scheduler.accept(sequence, len(guesses), num_right)

    def _jump_ahead(self, sequence: Sequence, outputs: StepOutputs) -> None:
        """Append the tokens that the grammar leaves no choice about; the next step computes them all together."""
        request = sequence.request
        if sequence.grammar is None or request.source.params.logprobs is not None:
            return
        for token_id in sequence.grammar.forced() if sequence.status is not Status.FINISHED else ():
            self._append(sequence, token_id, None, outputs)
            if sequence.status is Status.FINISHED:
                return

    def _record_token(self, sequence: Sequence, token_id: int, row: int, result: StepResult, outputs: StepOutputs) -> None:
        request = sequence.request
        if token_id < 0:
            stuck = sequence.grammar.error if sequence.grammar else None
            self._fail(request, f"the grammar cannot go on: {stuck}" if stuck else _NO_TOKEN, outputs)
            return
        if request.prompt_logprobs is not None and sequence.index == 0 and sequence.num_output_tokens == 0:
            outputs.prompt_logprobs.append(PromptLogprobs(request.request_id, request.prompt_logprobs))
        num_top = request.source.params.logprobs
        self._append(sequence, token_id, None if num_top is None else _raw_logprob(result, row, num_top), outputs)

    def _append(self, sequence: Sequence, token_id: int, logprob: RawLogprob | None, outputs: StepOutputs) -> None:
        request = sequence.request
        kept, finish_reason, stop_reason = self.scheduler.append(sequence, token_id)
        outputs.events.append(
            SequenceEvent(
                request.request_id,
                sequence.index,
                token_id if kept else -1,
                logprob if kept else None,
                finish_reason,
                stop_reason,
            )
        )
        if finish_reason is not None:
            if request.num_unfinished == 0:
                del self._requests[request.request_id]
        elif sequence.grammar is not None and not sequence.grammar.accept(token_id):
            self._fail(request, f"the grammar cannot go on: {sequence.grammar.error}", outputs)

    def _fail(self, request: Request, message: str, outputs: StepOutputs) -> None:
        """End every sequence of a request with an error; nobody else is touched."""
        for sequence in request.sequences:
            if sequence.status is not Status.FINISHED:
                outputs.events.append(SequenceEvent(request.request_id, sequence.index, -1, finish_reason="error", error=message))
                self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        if sequence.request.num_unfinished == 0:
            self._requests.pop(sequence.request.request_id, None)


def _raw_logprob(result: StepResult, row: int, num_top: int) -> RawLogprob:
    return RawLogprob(
        float(result.logprobs[row]),
        result.top_ids[row, :num_top].tolist(),
        result.top_logprobs[row, :num_top].tolist(),
    )
