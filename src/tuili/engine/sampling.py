"""From sampling parameters to a SamplingBatch: parameters are written once, when a sequence gets its slot, and gathered by slot
each step. Only rows that need penalties, bias or a list of allowed tokens take part in building the CSR lists."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tuili.backends.base import F32, I32, U32, SamplingBatch
from tuili.engine.request import Sequence
from tuili.text.grammar.state import GrammarState, MaskWriter
from tuili.types import SamplingParams

_NO_IDS: I32 = np.zeros(0, np.int32)
_NO_GUESSES: Mapping[int, list[int]] = {}


@dataclass(frozen=True, slots=True)
class Csr:
    """Entries of row r are [start[r], start[r + 1]) of ``ids`` and ``values``."""

    start: I32
    ids: I32
    values: npt.NDArray[Any]

    @staticmethod
    def join(parts: list[tuple[I32, npt.NDArray[Any]]]) -> "Csr":
        """One part a row."""
        start = np.zeros(len(parts) + 1, np.int32)
        np.cumsum([len(ids) for ids, _ in parts], out=start[1:])
        return Csr(start, np.concatenate([ids for ids, _ in parts]), np.concatenate([values for _, values in parts]))


class PenaltyCounts:
    """Each token a sequence has seen, once, with how often it was generated (0: in the prompt only)."""

    def __init__(self, prompt_token_ids: tuple[int, ...]) -> None:
        unique = sorted(set(prompt_token_ids))
        self._where = {token_id: i for i, token_id in enumerate(unique)}
        self._num_seen = 0
        self._ids = np.zeros(len(unique) + 64, np.int32)
        self._counts = np.zeros(len(unique) + 64, np.int32)
        self._ids[: len(unique)] = unique

    def update(self, sequence: Sequence) -> tuple[I32, I32]:
        """Count the output tokens that came since the last call; returns ids and counts."""
        num_prompt = len(sequence.request.prompt_token_ids)
        for token_id in sequence.token_ids[num_prompt + self._num_seen :]:
            where = self._where.setdefault(token_id, len(self._where))
            if where == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[where] = token_id
            self._counts[where] += 1
        self._num_seen = len(sequence.token_ids) - num_prompt
        return self._ids[: len(self._where)], self._counts[: len(self._where)]


class RowLists:
    """The lists of one slot: bias, ban of stop tokens before ``min_tokens``, allowed tokens, penalties."""

    def __init__(self, sequence: Sequence, padding: I32) -> None:
        params = sequence.request.source.params
        self.allowed = np.array(params.allowed_token_ids or (), np.int32)
        uses_penalties = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        # Presence and frequency look at the output only, so the prompt matters to the repetition penalty alone.
        prompt = sequence.request.prompt_token_ids if params.repetition_penalty != 1 else ()
        self.penalties = PenaltyCounts(prompt) if uses_penalties else None
        self._min_tokens = params.min_tokens
        self._bias = _bias(params, frozenset(), padding)
        self._bias_before_min_tokens = _bias(params, sequence.request.stop_token_ids, padding)

    @staticmethod
    def needed(sequence: Sequence) -> bool:
        params = sequence.request.source.params
        return bool(
            params.logit_bias
            or params.allowed_token_ids
            or params.min_tokens
            or params.repetition_penalty != 1
            or params.presence_penalty
            or params.frequency_penalty
        )

    def bias(self, num_output_tokens: int) -> tuple[I32, F32]:
        return self._bias_before_min_tokens if num_output_tokens < self._min_tokens else self._bias


def _bias(params: SamplingParams, banned: frozenset[int], padding: I32) -> tuple[I32, F32]:
    """Ids, each once, and values: the user's bias, then minus infinity for ``banned`` and ``padding``."""
    excluded = banned.union(padding.tolist())
    wanted = {token_id: value for token_id, value in params.logit_bias.items() if token_id not in excluded}
    ids = np.array([*wanted, *sorted(excluded)], np.int32)
    values = np.full(len(ids), -np.inf, np.float32)
    values[: len(wanted)] = list(wanted.values())
    return ids, values


class Masks:
    """Which tokens the grammars of a step's rows let come next."""

    def __init__(self, max_num_rows: int) -> None:
        self._none = np.full(max_num_rows, -1, np.int32)
        self._no_masks: U32 = np.zeros((0, 0), np.uint32)
        self._buffer = self._no_masks
        self._writer: MaskWriter | None = None

    def build(self, sequences: list[Sequence], target: I32, guesses: Mapping[int, list[int]]) -> tuple[I32, U32]:
        """The mask index of each row, and the masks. ``guesses``: by slot; a row behind a guess stands beside the one before."""
        index = self._none[: len(sequences)]
        if all(sequence.grammar is None for sequence in sequences):
            return index, self._no_masks
        index = index.copy()
        wanted: list[tuple[GrammarState, int, list[int]]] = []
        num_masks, last = 0, None
        for row, sequence in enumerate(sequences):
            if sequence.grammar is None or target[row] >= 0:
                continue
            if sequence is not last:
                wanted.append((sequence.grammar, num_masks, guesses.get(sequence.slot, [])))
                last = sequence
            index[row] = num_masks
            num_masks += 1
        if not wanted:
            return index, self._no_masks
        masks = self._rows(num_masks, wanted[0][0].num_words)
        self._write(wanted, masks)
        return index, masks

    def write(self, sequences: list[Sequence], masks: U32) -> None:
        """The masks of the next step, one for each sequence that has a grammar, into those of the last."""
        grammars = [sequence.grammar for sequence in sequences if sequence.grammar is not None]
        self._write([(grammar, row, []) for row, grammar in enumerate(grammars)], masks)

    def _write(self, wanted: list[tuple[GrammarState, int, list[int]]], masks: U32) -> None:
        if self._writer is None:
            self._writer = MaskWriter()
        self._writer.write(wanted, masks)

    def _rows(self, count: int, num_words: int) -> U32:
        if len(self._buffer) < count:
            self._buffer = np.zeros((2 * count, num_words), np.uint32)
        return self._buffer[:count]


class SamplingSlots:
    """Parameters by slot, and the SamplingBatch of a step.

    ``vocab_size``: width of the logits. ``banned_token_ids``: padding, never sampled for anybody.
    """

    def __init__(self, max_num_seqs: int, max_num_rows: int, vocab_size: int, banned_token_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self._padding = np.array([*banned_token_ids], np.int32)
        self._floats = np.zeros((6, max_num_seqs), np.float32)
        self._ints = np.zeros((3, max_num_seqs), np.int32)
        self._seeds = np.zeros(max_num_seqs, np.uint64)
        self._lists: dict[int, RowLists] = {}
        self._zero_start = np.zeros(max_num_rows + 1, np.int32)
        self._no_targets = np.full(max_num_rows, -1, np.int32)
        self._padding_ids = np.tile(self._padding, max_num_rows)
        self._padding_values = np.full(len(self._padding_ids), -np.inf, np.float32)
        self._masks = Masks(max_num_rows)
        self._padding_start = np.arange(max_num_rows + 1, dtype=np.int32) * len(self._padding)

    def admit(self, sequence: Sequence) -> None:
        """Write the parameters of a sequence that has just got its slot (again)."""
        params, slot = sequence.request.source.params, sequence.slot
        self._floats[:, slot] = (
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        top_k = params.top_k if 0 < params.top_k < self._vocab_size else 0
        self._ints[:, slot] = (top_k, -1 if params.logprobs is None else params.logprobs, sequence.index)
        self._seeds[slot] = sequence.request.seed
        self._lists.pop(slot, None)
        if RowLists.needed(sequence):
            self._lists[slot] = RowLists(sequence, self._padding)

    def build(
        self,
        sequences: list[Sequence],
        targets: list[int] | None = None,
        ahead: list[int] | None = None,
        guesses: Mapping[int, list[int]] = _NO_GUESSES,
    ) -> SamplingBatch:
        """The SamplingBatch of one step. ``sequences``: whose output row it is, row by row. ``targets``: -1 to sample, else the
        prompt token whose log-probability the row reports; None: every row samples. ``ahead``: how many guessed tokens lie
        between the known ones and the one that the row samples; None: no row has any. ``guesses``: these tokens, by slot."""
        slots = np.array([sequence.slot for sequence in sequences], np.intp)
        # np.take and not indexing, which would leave rows that are not contiguous.
        floats = np.take(self._floats, slots, axis=1)
        ints = np.take(self._ints, slots, axis=1)
        num_logprobs, target = ints[1], self._no_targets[: len(sequences)]
        if targets is not None:
            target = np.array(targets, np.int32)
            wanted = [sequence.request.source.params.prompt_logprobs or 0 for sequence in sequences]
            num_logprobs = np.where(target >= 0, np.array(wanted, np.int32), num_logprobs)
        position = np.array([sequence.num_output_tokens for sequence in sequences], np.int32)
        if ahead is not None:
            position += np.array(ahead, np.int32)
        bias, penalties, allowed = self._lists_of(sequences, target)
        mask_index, masks = self._masks.build(sequences, target, guesses)
        return SamplingBatch(
            temperature=floats[0],
            top_p=floats[1],
            min_p=floats[2],
            repetition_penalty=floats[3],
            presence_penalty=floats[4],
            frequency_penalty=floats[5],
            top_k=ints[0],
            num_logprobs=num_logprobs,
            sequence=ints[2],
            seed=self._seeds[slots],
            position=position,
            target=target,
            bias_start=bias.start,
            bias_ids=bias.ids,
            bias_values=bias.values,
            penalty_start=penalties.start,
            penalty_ids=penalties.ids,
            penalty_counts=penalties.values,
            allowed_start=allowed.start,
            allowed_ids=allowed.ids,
            mask_index=mask_index,
            masks=masks,
        )

    def advance(self, batch: SamplingBatch, sequences: list[Sequence]) -> SamplingBatch:
        """The batch of the next step, when the last one sampled a token for each of the same ``sequences``."""
        if self._lists and any(sequence.slot in self._lists for sequence in sequences):
            return self.build(sequences)
        if len(batch.masks) > 0:
            self._masks.write(sequences, batch.masks)
        np.add(batch.position, 1, out=batch.position)
        return batch

    def _lists_of(self, sequences: list[Sequence], target: I32) -> tuple[Csr, Csr, Csr]:
        """Bias, penalties and allowed tokens; rows with a target have none."""
        num_rows = len(sequences)
        nothing = Csr(self._zero_start[: num_rows + 1], _NO_IDS, _NO_IDS)
        rows = [self._lists.get(sequence.slot) for sequence in sequences]
        if not any(rows):
            num_padding = num_rows * len(self._padding)
            start = self._padding_start[: num_rows + 1]
            return Csr(start, self._padding_ids[:num_padding], self._padding_values[:num_padding]), nothing, nothing
        padding = (self._padding, self._padding_values[: len(self._padding)])
        bias: list[tuple[I32, F32]] = []
        penalties: list[tuple[I32, I32]] = []
        allowed: list[tuple[I32, I32]] = []
        for sequence, lists, skip in zip(sequences, rows, target >= 0, strict=True):
            sampled = lists if lists is not None and not skip else None
            bias.append(sampled.bias(sequence.num_output_tokens) if sampled else padding)
            penalties.append(sampled.penalties.update(sequence) if sampled and sampled.penalties else (_NO_IDS, _NO_IDS))
            allowed.append((sampled.allowed, sampled.allowed) if sampled else (_NO_IDS, _NO_IDS))
        return Csr.join(bias), Csr.join(penalties), Csr.join(allowed)
