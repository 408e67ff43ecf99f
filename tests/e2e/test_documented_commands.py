"""Every ``$ tuili …`` of the READMEs and of docs/, and the Python of docs/offline.md, run as they are printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.models import store_with

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def documented(page: Path) -> list[str]:
    fences = re.findall(r"```console\n(.*?)```", page.read_text(), re.S)
    return [line.removeprefix("$ ") for fence in fences for line in fence.splitlines() if line.startswith("$ ")]


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "TUILI_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }


def as_run_here(command: str) -> str:
    """The installed ``tuili`` script may belong to another checkout: run this one's package."""
    return re.sub(r"(^|\| )tuili ", rf"\1{sys.executable} -m tuili ", command)


@pytest.mark.real
@pytest.mark.parametrize(("page", "command"), [(page.name, command) for page in PAGES for command in documented(page)])
def test_documented_commands_work(page: str, command: str, tmp_path: Path) -> None:
    home = store_with(tmp_path, "smollm2:135m")
    done = subprocess.run(
        as_run_here(command),
        shell=True,
        env=environment(home),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{page}: {command}\n{done.stderr}"
    assert done.stdout.strip(), f"{page}: {command} printed nothing"


@pytest.mark.real
def test_the_offline_example_works(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "offline.md").read_text(), re.S)[0]
    home = store_with(tmp_path, "smollm2:135m")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(home), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3
