"""``--profile``: where the time of the steps went, said when the run ends and when the server stops."""

import signal
import subprocess
from pathlib import Path

from support.program import COMMAND, refused, tuili


def test_run_prints_a_table_at_its_end(environment: dict[str, str], tiny: Path) -> None:
    done = tuili(environment, "run", str(tiny), "abcd", "--raw", "--max-tokens", "3", "--seed", "1", "--profile")
    assert done.returncode == 0, done.stderr
    assert "prompt: 1 steps, 4 tokens" in done.stderr
    for op in ("linear q_proj/k_proj/v_proj Q8_0", "attention", "linear lm_head Q8_0", "sampling"):
        assert op in done.stderr
    assert "attention" not in done.stdout


def test_serve_prints_it_when_it_stops(environment: dict[str, str], tiny: Path) -> None:
    command = [*COMMAND, "serve", str(tiny), "--port", "0", "--profile"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if "ready" in line:
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
    assert process.returncode == 0, rest
    assert "no step ran" in rest, rest


def test_a_backend_that_keeps_no_times_says_so(environment: dict[str, str], tiny: Path) -> None:
    done = tuili(environment, "run", str(tiny), "hi", "--backend", "reference", "--profile")
    refused(done, "reference keeps no times", "--backend cpu")
