"""From an open model file to something that runs.

    source = open_gguf(path)
    model = read_model(source, max_model_len=...)            # cheap: metadata and tensor table only
    executable = bind(model, source, backend, limits)        # reads, transforms and packs the weights

``model.spec`` has the hyper-parameters, ``model.program`` the verified, fused program (``program.state_groups()`` says what the
KV cache needs; ``backend.kv_bytes_per_block(program)`` how much), ``model.formats`` the format of every weight.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuili.backends.base import PLAIN_LOADING, Backend, Executable, Limits, Loading
from tuili.errors import BackendError, ModelFileError
from tuili.models.gguf_config import architecture_of, gguf_config
from tuili.models.names import Names
from tuili.models.registry import Architecture, architecture
from tuili.models.spec import ModelSpec
from tuili.program.builder import Builder
from tuili.program.passes.fuse import fuse
from tuili.program.passes.shard import Sharded
from tuili.program.program import Program
from tuili.program.verify import InvalidProgram, verify
from tuili.quant.registry import format_of
from tuili.weights.cut import cut
from tuili.weights.source import Weight, WeightSource


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a model file holds, without its weights. ``stored``: where each declared weight is in the file."""

    architecture: str
    spec: ModelSpec
    program: Program
    formats: Mapping[str, str]
    stored: Names

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(decl.shape) for decl in self.program.weights.values())

    def sizes(self) -> dict[str, int]:
        """Bytes of each weight as stored."""
        return {
            name: math.prod(decl.shape[:-1]) * format_of(self.formats[name]).row_bytes(decl.shape[-1])
            for name, decl in self.program.weights.items()
        }

    def weights(self, source: WeightSource) -> "SourceWeights":
        """The program's weights, to be read from the file that this describes."""
        return SourceWeights(source, self.stored)

    @property
    def recipe(self) -> str:
        """Names how the file's tensors become the program's weights."""
        return hashlib.sha256(repr(sorted(self.stored.items())).encode()).hexdigest()[:32]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as stored."""
        return sum(self.sizes().values())


def build_program(arch: Architecture, spec: ModelSpec) -> Program:
    """The architecture's program: built, verified, fused, verified again."""
    builder = Builder(spec.architecture)
    program = builder.finish(arch.build(builder, spec))
    verify(program)
    fused = fuse(program)
    verify(fused)
    return fused


def read_model(source: WeightSource, *, max_model_len: int | None = None) -> ModelDescription:
    """Recognise the model and build its program; touches no weight data.

    ``max_model_len``: the context that will be asked for, where known; longrope models choose their factors by it.
    Raises NotSupported for an unknown architecture or feature, ModelFileError for tensors that are missing or do not fit.
    """
    name = architecture_of(source)
    arch = architecture(name)
    spec = arch.spec(gguf_config(source), max_model_len)
    try:
        program = build_program(arch, spec)
    except InvalidProgram as error:
        raise ModelFileError(f"the file's metadata describes an impossible {name} model: {error}") from error
    names = arch.weights(spec)
    stored = {weight: names[weight] for weight in program.weights}
    formats: dict[str, str] = {}
    present = set(source.names())
    absent = [where.name for where in stored.values() if where.name not in present]
    if absent:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        raise ModelFileError(f"the file calls itself {name} but lacks {', '.join(absent[:5])}{more}")
    for weight, where in stored.items():
        tensor, wanted = source.tensor(where.name), program.weights[weight].shape
        found = where.shape(tensor.shape)
        if found != wanted:
            raise ModelFileError(f"tensor {where.name} gives {list(found)} for {weight}; this {name} model needs {list(wanted)}")
        formats[weight] = tensor.format
    return ModelDescription(name, spec, program, formats, stored)


class SourceWeights(Mapping[str, Weight]):
    """The model's weights by canonical name, taken from the file when asked for: transformed copies live only as long as the
    caller keeps them."""

    def __init__(self, source: WeightSource, stored: Names) -> None:
        self._source = source
        self._stored = stored

    def __getitem__(self, name: str) -> Weight:
        where = self._stored[name]
        return where.take(self._source.tensor(where.name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def bind(
    model: ModelDescription, source: WeightSource, backend: Backend, limits: Limits, loading: Loading = PLAIN_LOADING
) -> Executable:
    """Give the program its weights on a backend. Raises BackendError naming all that the backend lacks."""
    missing = backend.missing(model.program, model.formats)
    if missing:
        raise BackendError(f"backend {backend.name} cannot run this {model.architecture} model: {'; '.join(missing)}")
    executable = backend.load(model.program, model.weights(source), limits, loading)
    source.release()
    return executable


def shard_weights(sharded: Sharded, weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """One rank's weights, cut from the whole ones before anything packs them."""
    result: dict[str, Weight] = {}
    for name in sharded.program.weights:
        part = sharded.cuts.get(name)
        result[name] = weights[name] if part is None else cut(weights[part.source], part.axis, part.start, part.stop, part.source)
    return result
