"""Where weights come from: a file format gives names, metadata and tensors, memory-mapped. No model names here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tuili.quant.format import Bytes

MetadataValue = str | int | float | bool | list[str] | list[int] | list[float] | list[bool]


@dataclass(frozen=True, slots=True)
class Weight:
    """Format + shape + named parts.

    ``shape`` is in Hugging Face order: [rows, columns] of a matrix is [out, in]; experts come first: [experts, out, in].
    GGUF weights have one part, ``data``: uint8 [*shape[:-1], row_bytes], a view of the mapped file. Other formats may have
    more (AWQ: qweight, scales, zeros).
    """

    format: str
    shape: tuple[int, ...]
    parts: Mapping[str, Bytes]

    @property
    def data(self) -> Bytes:
        return self.parts["data"]


class WeightSource(Protocol):
    """An open model file or set of files."""

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """Key-value metadata as the file has it."""
        ...

    def names(self) -> Iterable[str]:
        """Tensor names as the file has them."""
        ...

    def tensor(self, name: str) -> Weight:
        """The tensor of that name; raises ModelFileError when there is none, NotSupported when its format has no decoder."""
        ...

    def content(self) -> str:
        """Names the bytes of the file or files (``weights/content.py``)."""
        ...

    def release(self) -> None:
        """Tell the operating system that the mapped pages are not needed for now."""
        ...

    def close(self) -> None: ...
