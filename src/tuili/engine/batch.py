"""From a step plan to the arrays of one step. The arrays are allocated once and filled again each step."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tuili.backends.base import I32, Limits, SamplingBatch, StepInput
from tuili.engine.request import Sequence, StepPlan
from tuili.engine.sampling import SamplingSlots
from tuili.program.program import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Batch:
    """A step ready to launch. ``num_prompt_rows[i]``: output rows of the plan's sequence i that report prompt
    log-probabilities; they come before its sampled row. None: no sequence has any."""

    step: StepInput
    sampling: SamplingBatch
    num_prompt_rows: list[int] | None


class BatchBuilder:
    """``max_extra_rows``: output rows a step may have beside one a sequence. ``banned_token_ids``: see SamplingSlots."""

    def __init__(self, limits: Limits, *, max_extra_rows: int, vocab_size: int, banned_token_ids: Iterable[int] = ()) -> None:
        max_rows = limits.max_num_seqs + max_extra_rows
        self._sampling = SamplingSlots(limits.max_num_seqs, max_rows, vocab_size, banned_token_ids)
        num_groups = len(limits.num_blocks)
        max_blocks = -(-limits.max_model_len // BLOCK_SIZE)
        # By slot: what the tables of running sequences hold; by row: gathered for one step.
        self._tables = [np.full((limits.max_num_seqs, max_blocks), -1, np.int32) for _ in range(num_groups)]
        self._copied = np.zeros((num_groups, limits.max_num_seqs), np.int32)
        self._gathered = [np.empty(limits.max_num_seqs * max_blocks, np.int32) for _ in range(num_groups)]
        self._slot_mapping = [np.empty(limits.max_num_batched_tokens, np.int32) for _ in range(num_groups)]
        self._arange = np.arange(limits.max_num_batched_tokens, dtype=np.int32)
        self._token_ids = np.empty(limits.max_num_batched_tokens, np.int32)
        self._positions = np.empty(limits.max_num_batched_tokens, np.int32)
        self._query_start = np.zeros(limits.max_num_seqs + 1, np.int32)
        self._context_lens = np.empty(limits.max_num_seqs, np.int32)
        self._adapter_ids = np.zeros(limits.max_num_seqs, np.int32)
        # The last step, if each of its sequences computed one token and got one: when they all go on, only counters move.
        self._steady: tuple[list[Sequence], Batch] | None = None

    def build(self, plan: StepPlan) -> Batch:
        """The arrays of a step; what they hold is valid until the next call."""
        batch = self._advance(plan) or self._build(plan)
        step = batch.step
        steady = batch.num_prompt_rows is None and len(step.token_ids) == len(step.logit_rows) == len(plan.sequences)
        self._steady = (plan.sequences, batch) if steady else None
        return batch

    def _advance(self, plan: StepPlan) -> Batch | None:
        """The common case by the short way: the same sequences as in the last step, one token further each."""
        if self._steady is None or plan.admitted or plan.drafts or plan.sequences != self._steady[0] or max(plan.num_tokens) > 1:
            return None
        sequences, batch = self._steady
        step = batch.step
        if sequences[0].num_computed_tokens != step.positions[0, 0] + 1:  # the last step failed: nobody moved
            return None
        if any(sequence.prompt_rows_pending for sequence in sequences):
            return None
        if any(sequence.grammar and len(sequence.token_ids) - sequence.num_computed_tokens > 1 for sequence in sequences):
            return None  # more than one token was appended: the last one is not the next to compute
        step.token_ids[:] = [sequence.token_ids[-1] for sequence in sequences]
        for counter in (step.positions, step.context_lens):
            np.add(counter, 1, out=counter)
        # After rejected guesses a sequence may own its next block already: then no table changes where it enters that.
        entered = any(sequence.num_computed_tokens % BLOCK_SIZE == 0 for sequence in sequences)
        if self._copy_changed_tables(plan) or entered:
            slots = np.array([sequence.slot for sequence in sequences], np.intp)
            num_blocks = -(-int(step.context_lens.max()) // BLOCK_SIZE)
            groups = range(len(self._tables))
            step = replace(
                step,
                slot_mapping=[self._map_slots(g, slots, step.positions[0]) for g in groups],
                block_tables=[self._gather(g, slots, num_blocks) for g in groups],
            )
        else:
            for mapping in step.slot_mapping:
                mapping += 1
        return Batch(step, self._sampling.advance(batch.sampling, sequences), None)

    def _build(self, plan: StepPlan) -> Batch:
        for sequence in plan.admitted:
            self._admit(sequence)
        num_seqs = len(plan.sequences)
        slots = np.array([sequence.slot for sequence in plan.sequences], np.intp)
        computed = np.array([sequence.num_computed_tokens for sequence in plan.sequences], np.int32)
        counts = np.array(plan.num_tokens, np.int32)
        query_start = self._query_start[: num_seqs + 1]
        np.cumsum(counts, out=query_start[1:])
        context_lens = self._context_lens[:num_seqs]
        np.add(computed, counts, out=context_lens)
        total = int(query_start[-1])
        positions = self._positions[:total]
        np.add(np.repeat(computed - query_start[:-1], counts), self._arange[:total], out=positions)
        self._fill_tokens(plan, total)
        self._copy_changed_tables(plan)
        token_slots = np.repeat(slots, counts)
        num_blocks = -(-int(context_lens.max()) // BLOCK_SIZE)
        logit_rows, sampling, num_prompt_rows = self._build_rows(plan, computed, context_lens, query_start)
        step = StepInput(
            token_ids=self._token_ids[:total],
            positions=positions[np.newaxis],
            query_start=query_start,
            context_lens=context_lens,
            slot_mapping=[self._map_slots(g, token_slots, positions) for g in range(len(self._tables))],
            block_tables=[self._gather(g, slots, num_blocks) for g in range(len(self._tables))],
            logit_rows=logit_rows,
            adapter_ids=self._adapter_ids[:num_seqs],
        )
        return Batch(step, sampling, num_prompt_rows)

    def _admit(self, sequence: Sequence) -> None:
        self._sampling.admit(sequence)
        self._copied[:, sequence.slot] = 0
        for table in self._tables:
            table[sequence.slot] = -1
        assert sequence.blocks is not None
        sequence.blocks.changed = True

    def _fill_tokens(self, plan: StepPlan, total: int) -> None:
        token_ids: list[int] = []
        for i, (sequence, count) in enumerate(zip(plan.sequences, plan.num_tokens, strict=True)):
            start = sequence.num_computed_tokens
            if i in plan.drafts:
                token_ids += sequence.token_ids[start:] + plan.drafts[i]
                continue
            if count == 1:
                token_ids.append(sequence.token_ids[start])
            else:
                token_ids += sequence.token_ids[start : start + count]
        self._token_ids[:total] = token_ids

    def _copy_changed_tables(self, plan: StepPlan) -> bool:
        """Returns whether there was any."""
        any_changed = False
        for sequence in plan.sequences:
            blocks, slot = sequence.blocks, sequence.slot
            assert blocks is not None
            if not blocks.changed:
                continue
            blocks.changed = False
            any_changed = True
            for g, table in enumerate(blocks.tables):
                row, copied = self._tables[g][slot], int(self._copied[g, slot])
                row[copied : len(table)] = table[copied:]
                row[: blocks.first[g]] = -1
                self._copied[g, slot] = len(table)
        return any_changed

    def _map_slots(self, group: int, token_slots: npt.NDArray[np.intp], positions: I32) -> I32:
        mapping = self._slot_mapping[group][: len(positions)]
        blocks = self._tables[group][token_slots, positions // BLOCK_SIZE]
        np.add(blocks * BLOCK_SIZE, positions % BLOCK_SIZE, out=mapping)
        return mapping

    def _gather(self, group: int, slots: npt.NDArray[np.intp], num_blocks: int) -> I32:
        """Tables of this step's sequences, only as wide as the longest needs."""
        out = self._gathered[group][: len(slots) * num_blocks].reshape(len(slots), num_blocks)
        np.take(self._tables[group][:, :num_blocks], slots, axis=0, out=out, mode="clip")
        return out

    def _build_rows(
        self, plan: StepPlan, computed: I32, context_lens: I32, query_start: I32
    ) -> tuple[I32, SamplingBatch, list[int] | None]:
        """Output rows: the last known token of a sequence, and before it the rows of missing prompt log-probabilities."""
        if plan.drafts or any(sequence.prompt_rows_pending for sequence in plan.sequences):
            return self._build_rows_one_by_one(plan, query_start)
        known = np.array([len(sequence.token_ids) for sequence in plan.sequences], np.int32)
        samples = context_lens == known
        sampled = [sequence for sequence, sample in zip(plan.sequences, samples.tolist(), strict=True) if sample]
        return (query_start[1:] - 1)[samples], self._sampling.build(sampled), None

    def _build_rows_one_by_one(self, plan: StepPlan, query_start: I32) -> tuple[I32, SamplingBatch, list[int] | None]:
        logit_rows: list[int] = []
        owners: list[Sequence] = []
        targets: list[int] = []
        ahead: list[int] = []  # how many tokens behind the known ones a row samples
        num_prompt_rows: list[int] = []
        for i, (sequence, count) in enumerate(zip(plan.sequences, plan.num_tokens, strict=True)):
            start = sequence.num_computed_tokens
            offset = int(query_start[i]) - start
            rows = sequence.request.prompt_rows(start, start + count) if sequence.index == 0 else range(0)
            num_prompt_rows.append(len(rows))
            logit_rows += [offset + position for position in rows]
            targets += [sequence.token_ids[position + 1] for position in rows]
            num_drafts = len(plan.drafts.get(i, ()))
            ahead += [0] * len(rows)
            if start + count - num_drafts == len(sequence.token_ids):
                logit_rows += range(offset + len(sequence.token_ids) - 1, offset + start + count)
                targets += [-1] * (1 + num_drafts)
                ahead += range(1 + num_drafts)
            owners += [sequence] * (len(targets) - len(owners))
        guesses = {plan.sequences[i].slot: tokens for i, tokens in plan.drafts.items()}
        return np.array(logit_rows, np.int32), self._sampling.build(owners, targets, ahead, guesses), num_prompt_rows
