"""``tuili bench`` as a program: a model measured, written down, compared with itself; kernels; what goes wrong."""

import json
from pathlib import Path

import pytest

from support import models
from support.program import refused, tuili
from support.tiny_model import write_tiny_model

SMALL = ("-p", "16", "-n", "4", "-d", "0,16", "-r", "2", "--max-num-batched-tokens", "16")


def test_a_model_is_measured_and_compared(environment: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    done = tuili(environment, "bench", "engine", str(tiny), *SMALL, "-b", "1,2", "--json")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    names = [record["test"] for record in records]
    assert names == ["pp16", "pp16 @ d16", "tg4", "tg4 b2", "tg4 @ d16", "tg4 @ d16 b2"]
    for record in records:
        assert record["model"] == "tiny" and len(record["digest"]) == 64 and len(record["samples"]) == 2
        assert record["tokens_per_second"] > 0 and record["part_of_limit"] > 0
        assert record["probe"]["read_bytes_per_second"] > 1e8 and record["versions"]["tuili"]
    earlier = tmp_path / "earlier.json"
    earlier.write_text(done.stdout)
    done = tuili(environment, "bench", "engine", str(tiny), *SMALL, "--compare", str(earlier), "--threads", "1")
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split()[-1] == "ratio" and [row.split()[0] for row in rows] == ["pp16", "pp16", "tg4", "tg4"]
    assert all(float(row.split()[-1]) > 0 for row in rows)
    if records[0]["threads"] != 1:
        assert f"threads was {records[0]['threads']}, is 1" in done.stderr


def test_what_goes_wrong_with_a_model(environment: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    refused(tuili(environment, "bench", "engine", str(tiny)), "pp512 needs a context of 513 tokens; the model has 64")
    refused(tuili(environment, "bench", "engine", "no-such-model"), "no-such-model")
    other = write_tiny_model(tmp_path / "other.gguf", context=128)
    done = tuili(environment, "bench", "engine", str(other), *SMALL, "-r", "1", "--json")
    earlier = tmp_path / "earlier.json"
    earlier.write_text(done.stdout)
    refused(tuili(environment, "bench", "engine", str(tiny), *SMALL, "--compare", str(earlier)), "another model: other")


def test_kernels_are_measured(environment: dict[str, str]) -> None:
    flags = ("--ops", "linear", "--formats", "q4_k,F16", "--shapes", "512x256", "--rows", "1,8")
    done = tuili(environment, "bench", "kernels", *flags, "--json")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["format"], r["rows"]) for r in records] == [("Q4_K", 1), ("Q4_K", 8), ("F16", 1), ("F16", 8)]
    assert all(r["operations_per_second"] > 0 and r["bytes_per_second"] > 0 for r in records)
    header, *rows = tuili(environment, "bench", "kernels", *flags).stdout.splitlines()
    assert header.split()[:4] == ["op", "format", "shape", "rows"] and len(rows) == 4
    refused(tuili(environment, "bench", "kernels", "--formats", "Q4_K", "--shapes", "96x64"), "Q4_K matrices of 96 columns")
    refused(tuili(environment, "bench", "kernels", "--formats", "Q99"), "there is no format Q99")
    refused(tuili(environment, "bench", "kernels", "--ops", "sort"), "no op sort")


def test_the_machine_is_measured(environment: dict[str, str]) -> None:
    done = tuili(environment, "bench", "machine", "--isa", "generic", "--threads", "2", "--json")
    assert done.returncode == 0, done.stderr
    one, two = (json.loads(line) for line in done.stdout.splitlines())
    assert (one["threads"], two["threads"]) == (1, 2) and one["isa"] == "generic"
    assert one["core_latency_ns"] == 0 < two["core_latency_ns"]
    assert min(two["read_bytes_per_second"], two["small_page_read_bytes_per_second"], two["int8_operations_per_second"]) > 1e6
    header, *rows = tuili(environment, "bench", "machine", "--threads", "1").stdout.splitlines()
    assert header.startswith("isa") and {row.split()[1] for row in rows} == {"1"}
    refused(tuili(environment, "bench", "machine", "--isa", "sse"), "sse")


@pytest.mark.real
def test_a_real_model_is_measured(environment: dict[str, str]) -> None:
    model = str(models.path("smollm2:135m"))
    done = tuili(environment, "bench", "engine", model, "-p", "64", "-n", "8", "-r", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["test"] for line in done.stdout.splitlines()] == ["pp64", "tg8"]
