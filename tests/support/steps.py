"""Steps for an Executable, without an engine: whole prompts, chunks, mixed batches, each sequence in its own blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tuili.backends.base import Executable, Limits, StepInput
from tuili.program.program import BLOCK_SIZE, Program


def limits_for(program: Program, *, max_model_len: int = 512, max_num_seqs: int = 8, max_tokens: int = 512) -> Limits:
    """Enough KV blocks for every sequence at its longest, in each group."""
    blocks = max_num_seqs * -(-max_model_len // BLOCK_SIZE)
    return Limits(max_model_len, max_num_seqs, max_tokens, (blocks,) * len(program.state_groups()))


@dataclass
class Sequences:
    """Feeds tokens of several sequences to an executable and remembers how far each has got.

    Blocks are handed out in a scattered order, so that nothing works by luck of contiguous blocks.
    """

    executable: Executable
    program: Program
    limits: Limits
    lengths: dict[int, int] = field(default_factory=dict)

    def _table(self, sequence: int, group: int, length: int) -> np.ndarray:
        total = self.limits.num_blocks[group]
        per_sequence = total // self.limits.max_num_seqs
        used = -(-length // BLOCK_SIZE)
        assert used <= per_sequence, "sequence is longer than the limits"
        scattered = np.random.default_rng(17).permutation(total).astype(np.int32)
        return scattered[sequence * per_sequence : sequence * per_sequence + used]

    def step_input(self, chunks: dict[int, Sequence[int]], *, all_rows: bool = True) -> StepInput:
        """``chunks``: sequence number -> its next tokens. Output rows: every token's, or each sequence's last."""
        num_groups = len(self.program.state_groups())
        token_ids: list[int] = []
        positions: list[int] = []
        query_start, context_lens, logit_rows = [0], [], []
        slots: list[list[int]] = [[] for _ in range(num_groups)]
        widest = max(-(-(self.lengths.get(s, 0) + len(c)) // BLOCK_SIZE) for s, c in chunks.items())
        tables = [np.full((len(chunks), widest), -1, np.int32) for _ in range(num_groups)]
        for index, (sequence, chunk) in enumerate(chunks.items()):
            start = self.lengths.get(sequence, 0)
            stop = start + len(chunk)
            for group in range(num_groups):
                table = self._table(sequence, group, stop)
                tables[group][index, : len(table)] = table
                slots[group] += [int(table[p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, stop)]
            logit_rows += range(len(token_ids), len(token_ids) + len(chunk)) if all_rows else [len(token_ids) + len(chunk) - 1]
            token_ids += chunk
            positions += range(start, stop)
            query_start.append(len(token_ids))
            context_lens.append(stop)
            self.lengths[sequence] = stop
        return StepInput(
            token_ids=np.array(token_ids, np.int32),
            positions=np.array([positions], np.int32),
            query_start=np.array(query_start, np.int32),
            context_lens=np.array(context_lens, np.int32),
            slot_mapping=[np.array(group, np.int32) for group in slots],
            block_tables=tables,
            logit_rows=np.array(logit_rows, np.int32),
            adapter_ids=np.zeros(len(chunks), np.int32),
        )

    def feed(self, chunks: dict[int, Sequence[int]], *, all_rows: bool = True) -> np.ndarray:
        return self.executable.run(self.step_input(chunks, all_rows=all_rows))

    def feed_in_chunks(self, sequence: int, tokens: Sequence[int], size: int) -> np.ndarray:
        """Logits of every token, fed ``size`` at a time."""
        return np.concatenate([self.feed({sequence: tokens[i : i + size]}) for i in range(0, len(tokens), size)])
