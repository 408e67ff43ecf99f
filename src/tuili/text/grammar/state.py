"""Where a sequence stands in its grammar, and the masks that follow from it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

U32 = npt.NDArray[np.uint32]


class GrammarState:
    """One sequence's place in its grammar. It moves with the sequence's tokens and never goes back: it survives preemptions."""

    def __init__(self, matcher: "LLMatcher", num_words: int) -> None:
        self.matcher = matcher
        self.num_words = num_words

    @property
    def error(self) -> str | None:
        """Why the grammar cannot go on (too complex at this place), in one line."""
        return first_line(self.matcher.get_error()) if self.matcher.is_error() else None

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return self.matcher.is_accepting()

    def accept(self, token_id: int) -> bool:
        """Move over a token; False, and ``error`` says why, when the grammar forbids it."""
        return self.matcher.consume_token(token_id)

    def num_valid(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first on, the grammar would let come next."""
        return self.matcher.validate_tokens(list(token_ids))

    def forced(self) -> list[int]:
        """The tokens that have to come next, whatever the model says; none when there is a choice, or at the end."""
        return [] if self.matcher.is_stopped() else self.matcher.compute_ff_tokens()


class MaskWriter:
    """Computes masks [num_words] of uint32, a bit for each token, the lowest bit first. On one thread: masks are wanted while
    other threads are about to run the model."""

    def __init__(self) -> None:
        from llguidance import LLExecutor

        self._executor = LLExecutor(1)

    def write(self, wanted: Sequence[tuple[GrammarState, int, list[int]]], masks: U32) -> None:
        """For each (state, row, guesses): the mask of the next token into ``masks[row]``, and of the token after each guess into
        the rows behind it. A state in error gets a mask that bans everything."""
        assert masks.flags.c_contiguous and masks.dtype == np.uint32
        masks[:] = 0
        address, size, count = masks.ctypes.data, masks.shape[1] * 4, masks.shape[0]
        going = [entry for entry in wanted if entry[0].error is None]
        plain = [(state.matcher, row) for state, row, guesses in going if not guesses]
        guessed = [(state.matcher, row, guesses) for state, row, guesses in going if guesses]
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, address, size, count)
        if guessed:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(guessed, address, size, count)
        for state, row, guesses in going:
            if state.error is not None:
                masks[row : row + 1 + len(guesses)] = 0


def first_line(message: str) -> str:
    """llguidance's messages go on with its inner state: only what comes before that is for readers."""
    text = message.partition("\n<state>")[0].replace("<non-verbose/>", "")
    return " ".join(text.split())
