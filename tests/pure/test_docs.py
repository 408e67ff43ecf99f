"""Documents that cannot rot: the reference is what the code says, links lead somewhere, both READMEs show the same."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["cli.md", "metrics.md", "routes.md", "support.md"])
def test_the_reference_is_what_the_code_says(page: str) -> None:
    written = (ROOT / "docs" / "reference" / page).read_text()
    assert written == load_generator().render(page), "run: .venv/bin/python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_both_readmes_show_the_same_commands_and_the_same_table_rows() -> None:
    english, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md"))

    def commands(text: str) -> list[str]:
        return [line for fence in re.findall(r"```\w+\n(.*?)```", text, re.S) for line in fence.splitlines()]

    def without_comments(lines: list[str]) -> list[str]:
        return [line.split("  #")[0].rstrip() for line in lines]

    assert without_comments(commands(english)) == without_comments(commands(chinese))
    assert english.count("\n|") == chinese.count("\n|")
    numbers = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
    tables = ["\n".join(line for line in text.splitlines() if line.startswith("|")) for text in (english, chinese)]
    assert numbers.findall(tables[0]) == numbers.findall(tables[1])
