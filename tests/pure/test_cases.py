"""``tests/cases.toml``: every test it names exists, and every case has a test or says what it waits for."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES: dict[str, dict[str, list[str]]] = tomllib.loads((ROOT / "tests" / "cases.toml").read_text())


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("case", CASES)
def test_the_tests_of_a_case_exist(case: str) -> None:
    entry = CASES[case]
    assert entry.get("tests") or entry.get("deferred"), f"{case} has neither a test nor a reason"
    for test in entry.get("tests", []):
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(file), f"{case}: there is no {test}"
