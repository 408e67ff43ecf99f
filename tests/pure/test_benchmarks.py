"""The benchmarks' own arithmetic, and that the one without a peer runs; speeds are not asserted here."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compare_llama_cpp
import compare_quality
import machine
import material
import step_overhead
from peers.llama_cpp import find_or_build
from support.fake_model import small_tokenizer


def test_closeness_of_known_distributions() -> None:
    """Two tokens: p = (3/4, 1/4) against q = (1/2, 1/2) diverge by 3/4 ln(3/2) + 1/4 ln(1/2) nats."""
    expected = np.log(np.array([[0.75, 0.25], [0.1, 0.9]], np.float32))
    actual = np.log(np.array([[0.5, 0.5], [0.1, 0.9]], np.float32)) + np.float32(7)  # a constant shift changes nothing
    result = compare_quality.closeness(expected, lambda a, b: actual[a:b])
    assert result.divergence == pytest.approx([0.75 * np.log(1.5) + 0.25 * np.log(0.5), 0], abs=1e-6)
    assert result.clear.tolist() == [True, True]
    assert result.same_argmax.tolist() == [True, True]


def test_closeness_sees_other_tokens_and_narrow_gaps_in_every_chunk_of_rows() -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((3 * compare_quality.ROWS - 5, 40)).astype(np.float32)
    actual = expected.copy()
    actual[100], expected[70] = np.roll(actual[100], 1), 1.0
    result = compare_quality.closeness(expected, lambda a, b: actual[a:b])
    assert np.flatnonzero(~result.same_argmax).tolist() in ([100], [70, 100])
    assert set(np.flatnonzero(result.divergence > 1e-9)) == {70, 100}
    assert not result.clear[70]
    assert result.cosine[5] == pytest.approx(1)


def test_a_row_takes_the_peers_better_setting() -> None:
    rates = {"ours pp": [90.0, 110.0, 100.0], "theirs pp False": [40.0, 55.0, 50.0], "theirs pp True": [30.0, 20.0, 60.0]}
    row = compare_llama_cpp._row("m", "pp512", rates, "pp")
    assert (row["ours"], row["theirs"], row["ratio"]) == (100, 50, 2)
    assert row["spread"] == pytest.approx((90 / 40 - 2) / 2)


def test_material_is_the_same_every_time_and_holds_no_control_token() -> None:
    tokenizer = small_tokenizer()
    ids = material.random_ids(tokenizer, 200, seed=3)
    assert ids == material.random_ids(tokenizer, 200, seed=3) != material.random_ids(tokenizer, 200, seed=4)
    assert not any(tokenizer.is_hidden(token) for token in ids)
    texts = material.windows(tokenizer, 64, 2)
    assert [(w.kind, len(w.ids)) for w in texts] == [("prose", 64), ("prose", 64), ("code", 64), ("code", 64)]
    assert len({w.ids for w in texts}) == 4


def test_step_overhead_runs_and_counts_both_threads() -> None:
    row = step_overhead.measure(num_streams=3, num_tokens=30)
    assert row["test"] == "step3"
    assert row["engine"] > 0 and row["loop"] > 0
    assert row["steps"] > 15


def test_a_folder_that_is_no_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not the bin folder of a llama"):
        find_or_build(tmp_path / "bin")


def test_the_probe_measures_something() -> None:
    probe = machine.probe()
    assert probe.bandwidth > 0 and probe.round_trip > 0
    assert "cores" in machine.describe()
