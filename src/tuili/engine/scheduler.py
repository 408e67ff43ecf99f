"""Who computes how many tokens in the next step: a token budget over the paged KV cache. Integers only.

Rules, in this order:

1. Running sequences go first, in order of their key. One that needs a single token (decode) always finds it in the budget; one
   that catches up (prefill) takes what the decodes leave, in chunks. Chunks never change a result.
2. When a sequence cannot get a single block, the last of the running gives all of its blocks back and waits for its turn, with
   its place kept. It will compute its tokens again, its own output included.
3. Waiting sequences are admitted when there is a slot and their known tokens fit now, with one block to spare for each running
   sequence. They begin with what the prefix cache has of them; among those of about the same age the longest such beginning
   goes first, and one whose next tokens a running sequence is computing just now waits for that instead of computing them too.

What can never fit is refused before it comes here (``max_sequence_tokens``), so the head of the queue never waits for ever.
"""

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

from tuili.cache.manager import KVManager, Prefix
from tuili.config.options import SpeculativeConfig
from tuili.engine import policy
from tuili.engine.request import Request, Sequence, Status, StepPlan
from tuili.engine.speculate import Drafter, DraftStats
from tuili.types import FinishReason

_BY_KEY = attrgetter("key")


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """``max_prompt_rows``: output rows a step may spend on prompt log-probabilities, beside one row a sequence."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prompt_rows: int = 128


class Scheduler:
    """``prefix_caching``: sequences begin with blocks that earlier ones with the same tokens left behind. Otherwise only the
    sequences of one request share their prompt."""

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: KVManager,
        *,
        prefix_caching: bool = True,
        speculative: SpeculativeConfig | None = None,
    ) -> None:
        self.limits = limits
        self.speculative = speculative
        self.draft_stats = DraftStats()
        self.kv = kv
        self.prefix_caching = prefix_caching
        self.waiting: list[Sequence] = []  # in order of key, as is ``running``
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._tokens_left = 0
        self._prompt_rows_left = 0

    @property
    def max_sequence_tokens(self) -> int:
        """Prompt and output of one sequence together: the context, or what the whole cache can hold if that is less."""
        return min(self.limits.max_model_len, self.kv.max_tokens_alone)

    def add(self, request: Request) -> None:
        """Queue a request. Its other sequences follow when the first has computed the prompt, and share that."""
        assert len(request.prompt_token_ids) <= self.max_sequence_tokens
        insort(self.waiting, request.sequences[0], key=_BY_KEY)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence in whatever phase it is; its blocks and slot are free at once."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        sequence.request.num_unfinished -= 1

    def schedule(self) -> StepPlan:
        """Plan the next step; an empty plan means that there is nothing to do."""
        plan = StepPlan()
        self._tokens_left = self.limits.max_num_batched_tokens
        self._prompt_rows_left = self.limits.max_prompt_rows
        if not self._continue_running(plan):
            self._admit_waiting(plan)
        return plan

    def update(self, plan: StepPlan) -> list[int]:
        """The step was computed. Returns the positions in the plan whose last known token was computed: these got a token."""
        sampled: list[int] = []
        for i, sequence in enumerate(plan.sequences):
            sequence.num_computed_tokens += plan.num_tokens[i] - len(plan.drafts.get(i, ()))
            if sequence.blocks is not None:
                self.kv.keep(sequence.blocks, sequence.token_ids, sequence.num_computed_tokens)
            if sequence.num_computed_tokens == len(sequence.token_ids):
                sampled.append(i)
        return sampled

    def accept(self, sequence: Sequence, num_guessed: int, num_accepted: int) -> None:
        """So many of a sequence's guesses were right: their keys and values are good."""
        assert sequence.drafter is not None
        sequence.num_computed_tokens += num_accepted
        sequence.drafter.note(num_guessed, num_accepted)
        self.draft_stats.note(num_guessed, num_accepted)

    def append(self, sequence: Sequence, token_id: int) -> tuple[bool, FinishReason | None, int | None]:
        """Append a sampled token. Returns whether it was wanted (not with max_tokens 0), why the sequence ended, if it did, and
        the user's stop token id that ended it."""
        request = sequence.request
        if sequence.index == 0 and sequence.num_output_tokens == 0:
            self._queue_siblings(request)
        if len(sequence.token_ids) >= sequence.max_tokens_total:
            self.finish(sequence)
            return False, "length", None
        sequence.token_ids.append(token_id)
        if token_id in request.stop_token_ids:
            self.finish(sequence)
            return True, "stop", token_id if token_id in request.source.params.stop_token_ids else None
        if len(sequence.token_ids) >= sequence.max_tokens_total:
            self.finish(sequence)
            return True, "length", None
        return True, None, None

    def _queue_siblings(self, request: Request) -> None:
        for sibling in request.sequences[1:]:
            if sibling.status is Status.WAITING:
                insort(self.waiting, sibling, key=_BY_KEY)

    def _continue_running(self, plan: StepPlan) -> bool:
        """Plan the running sequences; returns whether one had to be preempted."""
        num_decodes = sum(len(s.token_ids) - s.num_computed_tokens == 1 for s in self.running)
        preempted = False
        i = 0
        while i < len(self.running) and self._tokens_left > 0:
            sequence = self.running[i]
            wanted = len(sequence.token_ids) - sequence.num_computed_tokens
            if wanted == 1:
                num_decodes -= 1
            else:
                wanted = min(wanted, max(self._tokens_left - num_decodes, 1))
            while not (granted := self._grant(sequence, wanted)) and not self._lacks_prompt_rows(sequence):
                preempted = True
                last = policy.victim(self.running)
                was_decode = len(last.token_ids) - last.num_computed_tokens == 1
                self._preempt(last)
                if last is sequence:
                    return True
                num_decodes -= was_decode
            if granted:
                self._plan(plan, sequence, granted)
                if wanted == 1:
                    self._add_drafts(plan, sequence, num_decodes)
            i += 1
        return preempted

    def _add_drafts(self, plan: StepPlan, sequence: Sequence, num_decodes: int) -> None:
        """Let a decoding sequence, the last of the plan, guess; never at the cost of the ``num_decodes`` still to be planned."""
        if self.speculative is None or sequence.request.draws_depend_on_output:
            return
        rows = sum(plan.num_tokens) + num_decodes
        most = min(
            self.speculative.max_batch_rows - rows,
            self._tokens_left - num_decodes,
            sequence.max_tokens_total - len(sequence.token_ids) - 1,
        )
        if most < 1 or min(self.kv.num_free) <= len(self.running):  # guesses never push anybody out
            return
        if sequence.drafter is None:
            sequence.drafter = Drafter(self.speculative)
        guesses = sequence.drafter.propose(sequence.token_ids, most)
        if sequence.grammar is not None:
            guesses = guesses[: sequence.grammar.num_valid(guesses)]
        assert sequence.blocks is not None
        computed, known = sequence.num_computed_tokens, len(sequence.token_ids)
        if guesses and self.kv.grow(sequence.blocks, computed, known + len(guesses)):
            plan.drafts[len(plan.sequences) - 1] = guesses
            plan.num_tokens[-1] += len(guesses)
            self._tokens_left -= len(guesses)

    def _admit_waiting(self, plan: StepPlan) -> None:
        while self._slots and self._tokens_left > 0:
            candidates = self._candidates()
            if not any(self._admit(plan, sequence, prefix) for sequence, prefix in candidates):
                return

    def _candidates(self) -> list[tuple[Sequence, Prefix | None]]:
        """Whom to admit next: the one with the longest kept prefix among the first, or else the first."""
        found: list[tuple[Sequence, Prefix | None]] = []
        for sequence in self.waiting:
            if found and not policy.may_overtake(sequence, found[0][0], len(found)):
                break
            prefix = self._match(sequence)
            if not self._is_being_computed(sequence, prefix):
                found.append((sequence, prefix))
        if not found:
            return []
        longest = max(found, key=lambda candidate: candidate[1].num_tokens if candidate[1] else 0)
        return [longest] if longest is found[0] else [longest, found[0]]

    def _match(self, sequence: Sequence) -> Prefix | None:
        """What the prefix cache has of a sequence; its last token is left out, whose output row is needed."""
        if not self.prefix_caching or sequence.prompt_rows_pending:
            return None
        return self.kv.match(sequence.request.namespace, sequence.token_ids, len(sequence.token_ids) - 1)

    def _is_being_computed(self, sequence: Sequence, prefix: Prefix | None) -> bool:
        """Whether a running sequence has the same tokens so far and computes the next block of them."""
        if not self.prefix_caching or sequence.prompt_rows_pending:
            return False
        start = prefix.num_tokens if prefix else 0
        end = start + self.kv.block_size
        if end >= len(sequence.token_ids):
            return False
        name = sequence.request.namespace
        return any(
            other.blocks is not None
            and self.kv.is_at_end(other.blocks, name, prefix)
            and other.token_ids[start:end] == sequence.token_ids[start:end]
            for other in self.running
        )

    def _admit(self, plan: StepPlan, sequence: Sequence, prefix: Prefix | None) -> bool:
        """Let a waiting sequence run from this step on; False, and nothing has changed, when its blocks are short."""
        parent = None if prefix else self._shareable(sequence)
        shared = self._shared_tokens(sequence) if parent else 0
        fits = self.kv.has_room(
            len(sequence.token_ids),
            chunk=self.limits.max_num_batched_tokens,
            shared=shared,
            prefix=prefix,
            spare=len(self.running),
        )
        if not fits:
            return False
        blocks = self.kv.fork(parent.blocks, shared) if parent and parent.blocks else None
        if blocks is None:
            shared = prefix.num_tokens if prefix else 0
            blocks = self.kv.start(sequence.request.namespace, prefix) if self.prefix_caching else self.kv.new()
        sequence.blocks, sequence.num_computed_tokens = blocks, shared
        granted = self._grant(sequence, min(len(sequence.token_ids) - shared, self._tokens_left))
        if not granted:
            self.kv.free(blocks)
            sequence.blocks, sequence.num_computed_tokens = None, 0
            return False
        self.waiting.remove(sequence)
        sequence.status = Status.RUNNING
        sequence.slot = self._slots.pop()
        sequence.request.note_cached(sequence, shared)
        insort(self.running, sequence, key=_BY_KEY)
        plan.admitted.append(sequence)
        self._plan(plan, sequence, granted)
        return True

    def _shared_tokens(self, sequence: Sequence) -> int:
        """Prompt tokens in whole blocks, the last prompt token left out: its output row is needed."""
        size = self.kv.block_size
        return (len(sequence.request.prompt_token_ids) - 1) // size * size

    def _shareable(self, sequence: Sequence) -> Sequence | None:
        """A running sequence of the same request that has computed the prompt's whole blocks."""
        if sequence.index == 0 or self._shared_tokens(sequence) == 0:
            return None
        for sibling in sequence.request.sequences:
            if sibling.status is Status.RUNNING and sibling.num_computed_tokens >= self._shared_tokens(sequence):
                return sibling
        return None

    def _grant(self, sequence: Sequence, wanted: int) -> int:
        """Blocks for up to ``wanted`` more tokens; returns for how many there are, 0 for none."""
        assert sequence.blocks is not None
        computed = sequence.num_computed_tokens
        if sequence.prompt_rows_pending:
            rows = sequence.request.prompt_rows(computed, computed + wanted)
            if len(rows) > self._prompt_rows_left:
                wanted = rows.start + self._prompt_rows_left - computed
        if wanted == 0:
            return 0
        if self.kv.grow(sequence.blocks, computed, computed + wanted):
            return wanted
        granted = min(wanted, self.kv.room(sequence.blocks, computed) - computed)
        if granted <= 0:
            return 0
        grown = self.kv.grow(sequence.blocks, computed, computed + granted)
        assert grown
        return granted

    def _lacks_prompt_rows(self, sequence: Sequence) -> bool:
        return self._prompt_rows_left == 0 and sequence.prompt_rows_pending

    def _plan(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> None:
        plan.sequences.append(sequence)
        plan.num_tokens.append(num_tokens)
        self._tokens_left -= num_tokens
        if sequence.prompt_rows_pending:
            start = sequence.num_computed_tokens
            self._prompt_rows_left -= len(sequence.request.prompt_rows(start, start + num_tokens))

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        sequence.num_preemptions += 1
        self.running.remove(sequence)
        self._release(sequence)
        sequence.num_computed_tokens = 0
        sequence.status = Status.WAITING
        insort(self.waiting, sequence, key=_BY_KEY)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.blocks is not None
        self.kv.free(sequence.blocks)
        sequence.blocks = None
        self._slots.append(sequence.slot)
        sequence.slot = -1
