"""The catalogue's models against transformers on the same dequantised weights, on prose and code."""

from collections.abc import Iterator

import numpy as np
import pytest

from support import models
from support.compare import agreement, cosines
from support.real_oracle import Case, load_case
from support.steps import Sequences, limits_for
from tuili.backends.base import Backend
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.reference.executor import ReferenceBackend
from tuili.models.load import bind, read_model
from tuili.weights.gguf import open_gguf

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1200)]

CHUNK = 64


@pytest.fixture(scope="module", params=models.FILES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield load_case(request.param)


def logits_of(backend: Backend, case: Case) -> list[np.ndarray]:
    source = open_gguf(case.path)
    model = read_model(source)
    longest = max(len(tokens) for tokens in case.tokens)
    limits = limits_for(model.program, max_model_len=longest, max_num_seqs=2, max_tokens=CHUNK)
    executable = bind(model, source, backend, limits)
    run = Sequences(executable, model.program, limits)
    results = [run.feed_in_chunks(index, tokens, CHUNK) for index, tokens in enumerate(case.tokens)]
    executable.close()
    source.close()
    return results


def test_reference_equals_transformers(case: Case) -> None:
    for ours, oracle in zip(logits_of(ReferenceBackend(), case), case.logits, strict=True):
        assert cosines(oracle, ours).min() > 0.9999
        assert not agreement(oracle, ours).clear_misses


def test_native_chooses_the_tokens_of_transformers(case: Case) -> None:
    ours, oracle = np.concatenate(logits_of(CpuBackend(), case)), np.concatenate(case.logits)
    found = agreement(oracle, ours)
    assert not found.clear_misses
    # The bar is 97 % of 2,000 positions and more; a share of a few hundred is itself uncertain by this much.
    chance = 0 if len(ours) >= 2000 else 2 * (0.97 * 0.03 / len(ours)) ** 0.5
    assert found.share >= 0.97 - chance
