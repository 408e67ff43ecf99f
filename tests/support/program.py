"""The real ``tuili`` program in its own process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-c", "from tuili.cli.main import main; main()")


def environment(home: Path) -> dict[str, str]:
    """This process's environment with our sources and a home of its own."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "TUILI_HOME": str(home)}


def tuili(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end with nothing on stdin."""
    command = [*COMMAND, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)


def refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    """It failed as it should: the exit code, an error block with these words, nothing on stdout, no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    block = done.stderr[done.stderr.index("error: ") :]
    for word in words:
        assert word in block
    assert "Traceback" not in done.stderr and 'File "' not in done.stderr
