"""The shape of the code, kept by a machine: imports go downward only, files stay small, a few names stay in one place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "tuili"
MAX_LINES = 600
MAX_FUNCTION_LINES = 60

#: package -> packages it may import from (itself always). The order is the drawing in docs/architecture.md.
BASE = {"errors", "types", "config", "observe"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "types": {"errors"},
    "config": {"errors", "types"},
    "observe": {"errors", "types", "config"},
    "quant": BASE,
    "program": BASE,
    "weights": BASE | {"quant"},
    "backends": BASE | {"program", "quant", "weights"},
    "models": BASE | {"program", "quant", "weights", "backends"},
    "cache": {"errors", "types"},
    "text": BASE,
    "library": BASE,
    "engine": BASE | {"cache", "models", "weights", "backends", "program", "text"},
    "offline": BASE | {"engine", "library"},
    "bench": BASE | {"engine", "models", "weights", "backends", "program", "quant"},
    "dialects": BASE,
    "server": BASE | {"dialects", "engine", "text"},
    "__main__": {"cli"},
    "cli": BASE
    | {
        "bench",
        "server",
        "dialects",
        "engine",
        "text",
        "library",
        "models",
        "weights",
        "backends",
        "program",
        "quant",
    },
}

#: module -> the only places that may import it
CONFINED = {
    "torch": ("backends/torch/",),
    "tuili._native": ("backends/cpu/native.py",),
    "fastapi": ("server/",),
    "starlette": ("server/",),
    "uvicorn": ("server/",),
    "tokenizers": ("text/tokenizer/",),
    "llguidance": ("text/grammar/",),
    "gguf": (),
    "transformers": (),
}


def python_files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            assert node.module
            yield node.module, node.lineno
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def package_of(path: Path) -> str:
    relative = path.relative_to(SRC)
    return relative.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_downward(path: Path) -> None:
    package = package_of(path)
    relative = str(path.relative_to(SRC))
    for name, line in imports(ast.parse(path.read_text())):
        for module, homes in CONFINED.items():
            if name == module or name.startswith(module + "."):
                assert relative.startswith(homes) if homes else False, f"{relative}:{line} imports {module}; only {homes} may"
        if package == "__init__" or not name.startswith("tuili."):
            continue
        target = name.split(".")[1]
        if target in ("__version__", "_native", package):
            continue
        assert target in ALLOWED[package], f"{relative}:{line}: {package} may not import {target}"


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(SRC)))
def test_environment_and_print_stay_in_one_place(path: Path) -> None:
    relative = str(path.relative_to(SRC))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
            assert relative == "config/sources.py", f"{relative}:{node.lineno} reads the environment; only config/sources.py may"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert relative.startswith("cli/"), f"{relative}:{node.lineno} prints; only cli/ may"


def test_files_and_functions_stay_small() -> None:
    sources = [
        *python_files(),
        *sorted((ROOT / "native").rglob("*.cpp")),
        *sorted((ROOT / "native").rglob("*.h")),
    ]
    sources += sorted((ROOT / "tests").rglob("*.py"))
    long_files = [f"{p.relative_to(ROOT)}: {n}" for p in sources if (n := len(p.read_text().splitlines())) > MAX_LINES]
    assert not long_files, long_files
    long_functions = [
        f"{path.relative_to(SRC)}:{node.lineno} {node.name}"
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert not long_functions, long_functions


def test_architecture_files_are_short() -> None:
    shared = {"__init__", "spec", "rope", "registry", "blocks", "load", "names", "gguf_config"}
    for path in (SRC / "models").glob("*.py"):
        if path.stem not in shared:
            assert len(path.read_text().splitlines()) <= 120, path.name
