"""What is in a model file, as a short text that changes with it: cheap, because reading every byte takes longer than loading.

A file of a content-addressed folder (``blobs/sha256-<digest>``, ours or another program's) is known by that digest. Any other
file is known by its size, the time of its last change and its inode. Both also by a digest of samples: both ends and some blocks
between them, so that a file restored with an old time, or a blob written over, is still seen.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

_BLOB = re.compile(r"sha256-([0-9a-f]{64})")
_ENDS = 64 * 1024
_BLOCK = 4096
_NUM_BLOCKS = 64


def content_of(paths: Sequence[Path]) -> str:
    """The text for the files of one model, in their order. Raises OSError when one cannot be read."""
    return " ".join(_content(path) for path in paths)


def _content(path: Path) -> str:
    status = path.stat()
    blob = _BLOB.fullmatch(path.name) if path.parent.name == "blobs" else None
    name = f"sha256:{blob[1]}" if blob else f"inode:{status.st_dev}.{status.st_ino}:mtime:{status.st_mtime_ns}"
    return f"{name}:size:{status.st_size}:samples:{_samples(path, status.st_size)}"


def _samples(path: Path, size: int) -> str:
    sha = hashlib.sha256()
    step = max(size // _NUM_BLOCKS, _BLOCK)
    with path.open("rb", buffering=0) as file:
        for start, length in ((0, _ENDS), *((at, _BLOCK) for at in range(step, size, step)), (max(size - _ENDS, 0), _ENDS)):
            file.seek(start)
            sha.update(file.read(length))
    return sha.hexdigest()[:32]
