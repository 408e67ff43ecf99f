"""The test data of a llama.cpp source tree: vocabularies with expected ids, and chat templates of many models.

$TUILI_TEST_LLAMA_CPP names the tree, for instance ``vendor/llama.cpp`` of the source package that benchmarks are compared with.
"""

import os
from pathlib import Path


def models() -> Path | None:
    """Its ``models`` folder, or None when there is none."""
    tree = os.environ.get("TUILI_TEST_LLAMA_CPP")
    folder = Path(tree) / "models" if tree else None
    return folder if folder is not None and folder.is_dir() else None


def files(pattern: str) -> list[Path]:
    folder = models()
    return sorted(folder.glob(pattern)) if folder is not None else []
